"""The options of `forerun prove`."""

from __future__ import annotations

from typing import Any

import click

from forerun.cli.config import config_option
from forerun.cli.flags import (
    AT_LEAST_ONE,
    SAMPLING,
    SPECULATIVE,
    from_dataclass,
    json_option,
    model_options,
)
from forerun.cli.options import FileName, Option
from forerun.engine.config import SpeculativeConfig
from forerun.params import SamplingParams
from forerun.proof.effort import DEFAULT_BATCH, DEFAULT_PROMPT_TOKENS, PARTS, Effort

# What an output ends with is not the user's to say where outputs have a fixed length.
OF_ENDINGS = ("max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "logprobs_mode")


def prove_options() -> list[click.Parameter]:
    """All options of `forerun prove`, in the order of its help."""
    sampling = [row for row in SAMPLING if row[0] not in (*OF_ENDINGS, "seed")]
    return [
        *_proof_options(),
        *model_options(dtype="fp32"),
        *from_dataclass(SpeculativeConfig, SPECULATIVE, "Speculation", {"monitor": False}),
        *from_dataclass(SamplingParams, sampling, "Sampling"),
        json_option(),
        config_option(),
    ]


def _proof_options() -> list[Option]:
    section = "Proof"
    usual = Effort()
    files = [
        Option(name, section, type=FileName(), metavar="FILE", help=text) for name, text in _FILES
    ]
    numbers = [
        Option(name, section, type=kind, default=getattr(usual, name, own), help=text)
        for name, kind, own, text in _NUMBERS
    ]
    part = Option(
        "part",
        section,
        type=click.Choice(PARTS),
        multiple=True,
        help="Run this part alone. Repeatable.",
    )
    return [*files, part, *numbers]


_FILES = (
    (
        "prompts",
        "Your prompts: JSON lines with a prompt (or turns), or one a line. Left out: the zoo's "
        "held-out ones.",
    ),
    ("certificate", "Write a Markdown certificate there."),
)
# Name, type, default where Effort has none, and help.
_NUMBERS: tuple[tuple[str, Any, int | None, str], ...] = (
    (
        "num_tokens",
        AT_LEAST_ONE,
        None,
        "Tokens for the statistics; four times as many halve the detection limit.",
    ),
    ("output_tokens", click.IntRange(min=2), None, "Length of every output."),
    ("equality_prompts", AT_LEAST_ONE, None, "Prompts to decode with and without speculation."),
    (
        "level",
        float,
        None,
        "Probability of a false alarm of the statistics, before a second look.",
    ),
    ("seed", int, None, "Of everything."),
    (
        "prompt_tokens",
        AT_LEAST_ONE,
        DEFAULT_PROMPT_TOKENS,
        "Of longer prompts only the last tokens are used.",
    ),
    ("batch_size", AT_LEAST_ONE, DEFAULT_BATCH, "Outputs that are generated at once."),
)
