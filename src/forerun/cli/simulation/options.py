"""The options of `forerun simulate`, in one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from forerun.checks import Check, number, one_of, optional
from forerun.cli.config import config_option
from forerun.cli.options import FileName, Name, Option
from forerun.cli.simulation.lists import Numbers, Wholes, list_option
from forerun.theory.devices import DEVICES, PRECISIONS

LONGEST = 256
MOST_SEQUENCES = 1 << 14
# The intervals are normal approximations, which fewer rounds would not bear.
FEWEST_ROUNDS = 100
UNITS = ("character", "word")
POLICIES = ("fixed", "adaptive")


def _checked(check: Check) -> Callable[..., Any]:
    return lambda _, param, value: check(param.opts[0], value)


def simulate_options() -> list[click.Parameter]:
    """All options of `forerun simulate`, in the order of its help."""
    return [
        *_sweep_options(),
        *_simulation_options(),
        *_text_options(),
        *_hardware_options(),
        *_model_options(),
        Option("json", "Other", is_flag=True, help="Print one JSON object instead."),
        Option(
            "plot",
            "Other",
            type=FileName(),
            metavar="FILE.png",
            help="Draw it too; needs forerun[plot].",
        ),
        config_option(),
    ]


def _sweep_options() -> list[Option]:
    section = "Sweep (lists: 0.5,0.8; integers also 1-12 and 4k)"
    share = Numbers(0.0, 1.0)
    return [
        list_option(
            "acceptance",
            section,
            share,
            "0.5,0.7,0.8,0.9",
            "Probabilities that a drafted token is accepted when it is tested.",
        ),
        list_option(
            "cost_ratio",
            section,
            Numbers(0.0, 1000.0),
            "0.1",
            "Costs of a drafted token, in plain target forwards.",
        ),
        list_option("lengths", section, Wholes(1, LONGEST), "1-12", "Tokens to draft a round."),
        list_option(
            "agreement",
            section,
            share,
            None,
            "Measure acceptance on random rows instead: shares of the target in the draft's logits.",
        ),
    ]


def _simulation_options() -> list[Option]:
    section = "Simulation"
    return [
        Option(
            "rounds",
            section,
            type=click.IntRange(min=FEWEST_ROUNDS, max=1_000_000),
            help="Simulate so many rounds a setting too; rows to draw for --agreement.",
        ),
        Option(
            "seed",
            section,
            type=click.IntRange(min=0),
            default=0,
            help="Of the simulation and of --text.",
        ),
        Option(
            "policy",
            section,
            type=Name(),
            default="fixed",
            callback=_checked(one_of(POLICIES)),
            help="fixed, or adaptive: hold it against every fixed length.",
        ),
    ]


def _text_options() -> list[Option]:
    section = "Text"
    order = click.IntRange(min=1, max=32)
    return [
        Option(
            "text",
            section,
            type=FileName(),
            metavar="FILE",
            help="Fit n-gram target and draft to this UTF-8 file; - is standard input.",
        ),
        Option("target_order", section, type=order, default=4, help="n of the target."),
        Option("draft_order", section, type=order, default=2, help="n of the draft."),
        Option(
            "unit",
            section,
            type=Name(),
            default="character",
            callback=_checked(one_of(UNITS)),
            help="A token: character or word.",
        ),
        Option(
            "num_tokens",
            section,
            type=click.IntRange(min=10, max=1_000_000),
            default=600,
            help="To generate at each length.",
        ),
    ]


def _hardware_options() -> list[Option]:
    section = "Hardware"
    return [
        Option("hardware", section, type=Name(), help=f"Plan for {', '.join(DEVICES)}."),
        _own("bandwidth", "GB/s that its memory reads; with --flops, for hardware of your own."),
        _own("flops", "TFLOP/s of its dense matrix products."),
        _own("memory", "GB that it has."),
        Option(
            "num_devices",
            section,
            type=click.IntRange(min=1, max=1024),
            default=1,
            help="How many share the work evenly.",
        ),
        Option(
            "parallel_efficiency",
            section,
            type=float,
            default=0.8,
            callback=_checked(number(0.0, 1.0, above=True)),
            help="Share of their joint limits that several reach; assumed.",
        ),
        Option(
            "overhead",
            section,
            type=float,
            default=0.0,
            callback=_checked(number(0.0, 1e6)),
            help="Milliseconds that every forward takes besides, for launches and the host.",
        ),
    ]


def _own(name: str, text: str) -> Option:
    check = _checked(optional(number(0.0, 1e9, above=True)))
    return Option(name, "Hardware", type=float, callback=check, help=text)


def _model_options() -> list[Option]:
    section = "Models"
    return [
        Option(
            "target",
            section,
            type=Name(),
            help="A known model (a wrong name lists them) or a count such as 70B.",
        ),
        Option(
            "draft",
            section,
            type=Name(),
            help="The same for the draft model. Left out, drafts cost --cost-ratio, or else nothing.",
        ),
        _number_kind("dtype", f"Of the weights: {', '.join(PRECISIONS)}; auto is bf16."),
        _number_kind("draft_dtype", "Of the draft's weights; auto is the target's."),
        _number_kind("cache_dtype", "Of keys and values; auto is 16 bits, 32 with fp32."),
        list_option(
            "batch", section, Wholes(1, MOST_SEQUENCES), "1,4,16,64,256,1024", "Sequences at once."
        ),
        list_option(
            "context", section, Wholes(0, 1 << 30), "1k,8k,32k,128k", "Tokens of each in the cache."
        ),
    ]


def _number_kind(name: str, text: str) -> Option:
    check = _checked(one_of(("auto", *PRECISIONS)))
    return Option(name, "Models", type=Name(), default="auto", callback=check, help=text)
