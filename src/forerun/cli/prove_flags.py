"""The options of `forerun prove`."""

from __future__ import annotations

import click

from forerun.cli.config import config_option
from forerun.cli.derived import derived, speculation_options
from forerun.cli.flags import (
    AT_LEAST_ONE,
    cache_options,
    json_option,
    model_options,
    questions_option,
)
from forerun.cli.options import Option
from forerun.cli.param_types import FileName
from forerun.engine.settings import EngineSettings
from forerun.params import SamplingParams
from forerun.proof.effort import DEFAULT_BATCH, DEFAULT_PROMPT_TOKENS, PARTS, Effort

# Options about endings have no use: the outputs of a proof have a fixed length.
OF_ENDINGS = ("max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "logprobs_mode")
# Settings of an engine that follow from the prompts, the model and other options.
SIZES_AND_ENDINGS = ("max_batch_size", "max_context", "eos_token_ids")


def prove_options() -> list[click.Parameter]:
    """All options of `forerun prove`, in the order of its help."""
    return [
        *_proof_options(),
        *model_options(dtype="fp32"),
        *derived(EngineSettings, "Model", without=SIZES_AND_ENDINGS),
        *cache_options(),
        *speculation_options({"policy": "fixed"}),
        *derived(SamplingParams, "Sampling", without=(*OF_ENDINGS, "seed")),
        json_option(),
        config_option(),
    ]


def _proof_options() -> list[Option]:
    section = "Proof"
    return [
        questions_option(
            "prompts",
            section,
            "Your prompts, the first turns without a template",
            "Left out, the zoo's held-out prompts.",
        ),
        Option(
            "certificate",
            section,
            type=FileName(),
            help="Write a Markdown certificate there.",
        ),
        Option(
            "part",
            section,
            type=click.Choice(PARTS),
            multiple=True,
            help="Run only this part. Repeatable.",
        ),
        *derived(Effort, section, without=("parts",)),
        Option(
            "prompt_tokens",
            section,
            type=AT_LEAST_ONE,
            default=DEFAULT_PROMPT_TOKENS,
            help="Longer prompts are cut to this many last tokens.",
        ),
        Option(
            "batch_size",
            section,
            type=AT_LEAST_ONE,
            default=DEFAULT_BATCH,
            help="Outputs generated at once.",
        ),
    ]
