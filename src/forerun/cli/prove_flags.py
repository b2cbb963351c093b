"""The options of `forerun prove`."""

from __future__ import annotations

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
    return [
        Option(
            "prompts",
            section,
            type=FileName(),
            metavar="FILE",
            help="Your prompts: JSON lines with a prompt (or turns), or one a line. "
            "Left out: the zoo's held-out ones.",
        ),
        Option(
            "prompt_tokens",
            section,
            type=AT_LEAST_ONE,
            default=DEFAULT_PROMPT_TOKENS,
            help="Of longer prompts only the last tokens are used.",
        ),
        Option(
            "num_tokens",
            section,
            type=AT_LEAST_ONE,
            default=usual.num_tokens,
            help="Tokens for the statistics; four times as many halve the detection limit.",
        ),
        Option(
            "output_tokens",
            section,
            type=click.IntRange(min=2),
            default=usual.output_tokens,
            help="Length of every output.",
        ),
        Option(
            "equality_prompts",
            section,
            type=AT_LEAST_ONE,
            default=usual.equality_prompts,
            help="Prompts to decode with and without speculation.",
        ),
        Option(
            "level",
            section,
            type=float,
            default=usual.level,
            help="Probability of a false alarm of the statistics, before a second look.",
        ),
        Option("seed", section, type=int, default=usual.seed, help="Of everything."),
        Option(
            "part",
            section,
            type=click.Choice(PARTS),
            multiple=True,
            help="Run this part alone. Repeatable.",
        ),
        Option(
            "batch_size",
            section,
            type=AT_LEAST_ONE,
            default=DEFAULT_BATCH,
            help="Outputs that are generated at once.",
        ),
        Option(
            "certificate",
            section,
            type=FileName(),
            metavar="FILE",
            help="Write a Markdown certificate there.",
        ),
    ]
