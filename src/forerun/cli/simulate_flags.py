"""The options of `forerun simulate`, in tables of name, type, default and help."""

from __future__ import annotations

from typing import Any, Literal, get_args

import click
from click.shell_completion import CompletionItem

from forerun.cli.completion import matching
from forerun.cli.config import config_option
from forerun.cli.lists import Numbers, Wholes, list_option
from forerun.cli.options import Option
from forerun.cli.param_types import FileName, Name
from forerun.cli.results import plot_option
from forerun.costs.hardware import HARDWARE
from forerun.costs.precision import PRECISIONS
from forerun.costs.shapes import SHAPES
from forerun.options import check

LONGEST = 256
MOST_REQUESTS = 1 << 14
# The intervals are normal approximations, which need enough rounds.
FEWEST_ROUNDS = 100
_ORDER = click.IntRange(min=1, max=32)
_PRECISION = Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8", "int4"]


class Checked(click.ParamType[Any]):
    """A value that `forerun.options.check` checks, so that its error is like those of the library.

    Args:
        kind: the type.
        name: what the help calls it.
        bounds: as `check` takes them.
    """

    def __init__(self, kind: Any, name: str = "float", **bounds: float) -> None:
        self.kind, self.name, self.bounds = kind, name, bounds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        assert param is not None
        read = click.FLOAT if self.name == "float" else Name()
        return check(param.opts[0], read.convert(value, param, ctx), self.kind, **self.bounds)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return matching(get_args(self.kind), incomplete)


_POSITIVE = Checked(float, ge=1e-6, le=1e9)
# A type of lists makes an option of numbers with commas between them.
_TABLES: dict[str, tuple[tuple[str, Any, Any, str], ...]] = {
    "Sweep (lists: 0.5,0.8; integers also 1-12 and 4k)": (
        ("acceptance", Numbers(0.0, 1.0), "0.5,0.7,0.8,0.9",
         "Probabilities that a drafted token is accepted when it is tested."),
        ("cost_ratio", Numbers(0.0, 1000.0), "0.1",
         "Costs of a drafted token, in plain target forwards."),
        ("lengths", Wholes(1, LONGEST), "1-12", "Tokens to draft a round."),
    ),
    "Simulation": (
        ("rounds", click.IntRange(FEWEST_ROUNDS, 1_000_000), None,
         "Simulate this many rounds per setting too."),
        ("seed", click.IntRange(min=0), 0, "Seed of the simulation and of --text."),
        ("policy", Checked(Literal["fixed", "adaptive"], "text"), "fixed",
         "fixed, or adaptive: compare it with every fixed length."),
    ),
    "Text": (
        ("text", FileName(), None,
         "Fit n-gram target and draft to this UTF-8 file; - is standard input."),
        ("target_order", _ORDER, 4, "n of the target."),
        ("draft_order", _ORDER, 2, "n of the draft."),
        ("unit", Checked(Literal["character", "word"], "text"), "character",
         "What a token is: character or word."),
        ("num_tokens", click.IntRange(10, 1_000_000), 600, "Tokens to generate at each length."),
    ),
    "Hardware": (
        ("hardware", Name(HARDWARE), None, f"Plan for {', '.join(HARDWARE)}."),
        ("bandwidth", _POSITIVE, None,
         "GB/s of its memory; with --flops, for hardware of your own."),
        ("flops", _POSITIVE, None, "TFLOP/s of its dense matrix products."),
        ("memory", _POSITIVE, None, "GB of its memory."),
        ("num_devices", click.IntRange(1, 1024), 1, "Devices that share the work evenly."),
        ("parallel_efficiency", Checked(float, ge=1e-3, le=1.0), 0.8,
         "Share of their joint limits that several devices reach; assumed."),
        ("overhead", Checked(float, ge=0.0, le=1e6), 0.0,
         "Milliseconds added to every forward, for launches and the host."),
    ),
    "Models": (
        ("target", Name(SHAPES), None,
         "A known model (a wrong name lists them) or a count such as 70B."),
        ("draft", Name(SHAPES), None,
         "The same for the draft model. Left out, a drafted token costs --cost-ratio; with neither "
         "it costs nothing, which gives upper bounds."),
        ("draft_window", click.IntRange(1, 1 << 30), None,
         "The target drafts for itself from so many tokens of its text, as method self_sparse; from "
         "which context on does that pay?"),
        ("dtype", Checked(_PRECISION, "text"), "auto",
         f"Of the weights: {', '.join(PRECISIONS)}; auto is bf16."),
        ("draft_dtype", Checked(_PRECISION, "text"), "auto",
         "Of the draft's weights; auto is the target's."),
        ("cache_dtype", Checked(_PRECISION, "text"), "auto",
         "Of keys and values; auto is 16 bits, 32 with fp32."),
        ("batch", Wholes(1, MOST_REQUESTS), "1,4,16,64,256,1024", "Requests at once."),
        ("context", Wholes(0, 1 << 30), "1k,8k,32k,128k", "Tokens of each in the cache."),
    ),
}  # fmt: skip


def simulate_options() -> list[click.Parameter]:
    """All options of `forerun simulate`, in the order of its help."""
    return [
        *(option for section in _TABLES for option in section_options(section)),
        Option("json", "Other", is_flag=True, help="Print one JSON object instead."),
        plot_option(),
        config_option(),
    ]


def section_options(section: str) -> list[Option]:
    """The options under a heading of the help, such as `Hardware`."""
    return [
        list_option(name, section, kind, default, text)
        if isinstance(kind, Numbers)
        else Option(name, section, type=kind, default=default, help=text)
        for name, kind, default, text in _TABLES[section]
    ]
