"""What the options of a command that runs a model ask for."""

from __future__ import annotations

from typing import Any

import click

from forerun.cli.combinations import check_context, refuse_unread
from forerun.cli.flags import RENAMED, SAMPLING, SPECULATIVE
from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError
from forerun.params import SamplingParams

# Caches are allocated in steps of this many tokens.
CONTEXT_STEP = 64


def sampling_params(values: dict[str, Any]) -> SamplingParams:
    """The sampling parameters that the options ask for.

    Raises:
        ConfigError: for a value out of range, or a token with two biases.
    """
    chosen = {name: values[name] for name, _, _ in SAMPLING if name in values}
    biases = chosen["logit_bias"]
    chosen["logit_bias"] = dict(biases)
    if len(biases) != len(chosen["logit_bias"]):
        raise ConfigError("--logit-bias names a token twice; give each once.")
    return SamplingParams.from_dict(chosen)


def speculative_config(values: dict[str, Any]) -> SpeculativeConfig:
    """How the options ask to speculate.

    Raises:
        ConfigError: for a value out of range or a name that does not exist.
    """
    return SpeculativeConfig.from_dict(
        {name: values[RENAMED.get(name, name)] for name, _, _ in SPECULATIVE}
    )


def choose(
    ctx: click.Context, speculative: SpeculativeConfig, model: str
) -> tuple[SpeculativeConfig, str | None]:
    """The complete config, and what to say about it once all is loaded."""
    from forerun.engine import pairs

    if speculative.method is not None:
        speculative = _read(ctx, speculative)
    choice = pairs.choose(speculative, model)
    return _read(ctx, choice.config), choice.note


def _read(ctx: click.Context, config: SpeculativeConfig) -> SpeculativeConfig:
    """The config without options that its method does not read: those yield, or are refused."""
    from forerun.engine.pairs import without_unread

    refuse_unread(ctx, config)
    return without_unread(config)


def longest_context(values: dict[str, Any]) -> int:
    """The model's own context, in tokens; `--max-context` is no longer."""
    from forerun.engine.load import locate
    from forerun.models import describe, load_config

    model = values["model"]
    config = load_config(locate(model), revision=values["revision"])
    longest = describe(config, model).max_context
    check_context(values["max_context"], longest, model)
    return longest


def in_steps(context: int) -> int:
    """The tokens that a cache is allocated for where this many are needed."""
    return -(-context // CONTEXT_STEP) * CONTEXT_STEP


def set_threads(values: dict[str, Any]) -> None:
    """Have torch and the CPU kernels use as many threads as `--threads` says."""
    import torch

    from forerun.models.cpu import set_num_threads

    if values["threads"] is not None:
        set_num_threads(values["threads"])
        torch.set_num_threads(values["threads"])
