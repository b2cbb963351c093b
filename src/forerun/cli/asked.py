"""What the options of a command that runs a model ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.bars import bars, waiting
from forerun.cli.combinations import check_context, yields
from forerun.cli.derived import RENAMED
from forerun.cli.foreign import METHODS
from forerun.cli.options import given
from forerun.cli.speculative_json import read_speculative_json
from forerun.compression import Compression
from forerun.core import Drawing
from forerun.drafters import DRAFTERS, drafters_of
from forerun.engine.config import SpeculativeConfig
from forerun.engine.resolve import Resolved, choose, default_method, pick_method
from forerun.engine.speculation_options import OWN_SECTIONS, with_method_options
from forerun.errors import ConfigError
from forerun.options import pick, schema_of
from forerun.params import SamplingParams
from forerun.policies import POLICIES

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.models import Checkpoint

# Caches are allocated in steps of this many tokens.
CONTEXT_STEP = 64


def sampling_params(values: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters that the options ask for.

    Raises:
        ConfigError: for a value out of range, or a token with two biases.
    """
    biases = dict(values["logit_bias"])
    if len(biases) != len(values["logit_bias"]):
        raise ConfigError("--logit-bias names a token twice; give each token once.")
    return pick(SamplingParams, {**values, "logit_bias": biases})


def with_defaults(
    ctx: click.Context, params: SamplingParams, defaults: Mapping[str, Any]
) -> tuple[SamplingParams, tuple[str, ...]]:
    """Parameters with the model's own defaults where no option says otherwise, and the names of those."""
    from_model = {name: value for name, value in defaults.items() if not given(ctx, name)}
    return replace(params, **from_model), tuple(from_model)


def speculation(ctx: click.Context, values: dict[str, Any], target: str) -> Resolved:
    """How the options ask to speculate.

    Raises:
        ConfigError: for a value out of range, or an option of another method.
        UnknownNameError: for a name that does not exist.
    """
    read_speculative_json(ctx, values)
    common = [name for name in schema_of(SpeculativeConfig) if name != "options"]
    chosen = {name: values[RENAMED.get(name, name)] for name in common}
    chosen["method"] = METHODS.get(chosen["method"], chosen["method"])
    method = chosen["method"] or default_method(chosen["model"], target)
    own = _own_options(ctx, values, DRAFTERS.find(method).options)
    if chosen["method"] is None:
        method, own = pick_method(chosen["model"], target, own)
    drafters, policy = drafters_of(method, own), POLICIES.find(chosen["policy"])
    read = _names([policy.options, *(drafter.options for drafter in drafters)])
    if any(Drawing.SAMPLED in drafter.drawings for drafter in drafters):
        read.add("draft_sample_method")
    # What the method does not read yields to a method from a stronger source, and is refused otherwise.
    for name in [name for name in (*own, "draft_sample_method") if name not in read]:
        flag = name if name in ctx.params and given(ctx, name) else "method_option"
        if yields(ctx, flag, ("method", "draft_model", "policy")):
            (own if name in own else chosen).pop(name)
    return choose(SpeculativeConfig(**chosen, options=own), target)


def _own_options(ctx: click.Context, values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The options of methods and policies that were given, by name.

    Args:
        kind: the class that says first how `--method-option` is read.
    """
    own = {name: values[name] for name in sorted(_names(OWN_SECTIONS.values())) if given(ctx, name)}
    return with_method_options(values["method_option"], own, kind)


def open_checkpoint(values: dict[str, Any]) -> Checkpoint:
    """The model that `--model` names, whose context `--max-context` must not exceed; it will run on as
    many threads as `--threads` says.

    Raises:
        ForerunError: for a model that cannot be run, or a context that it does not have.
    """
    set_threads(values)
    with waiting("starting"):
        from forerun.models import Checkpoint

        checkpoint = Checkpoint.open(values["model"], values["revision"])
    check_context(values["max_context"], checkpoint.summary.max_context, checkpoint.name)
    return checkpoint


def load_engine(
    values: dict[str, Any],
    checkpoint: Checkpoint,
    choice: Resolved | None,
    *,
    max_context: int,
    max_batch_size: int = 1,
    prefix_reuse: bool = True,
) -> Engine:
    """The engine that the options ask for; says what was chosen where they leave it open.

    Args:
        choice: how to speculate; None decodes plainly.
        max_context, max_batch_size, prefix_reuse: as of `forerun.load`.
    """
    from forerun.engine.load import load

    compression = pick(Compression, values)
    with bars():
        engine = load(
            checkpoint,
            False if choice is None else choice,
            dtype=values["dtype"],
            device=values["device"],
            backend=values["backend"],
            kv_dtype=values.get("kv_dtype", "auto"),
            max_batch_size=max_batch_size,
            max_context=max_context,
            prefix_reuse=prefix_reuse,
            compression=compression,
        )
    if compression.is_on:
        click.echo(
            f"forerun: kv_method {compression.kv_method!r} is approximate: what it evicts changes the output",
            err=True,
        )
    if choice is not None and choice.note:
        click.echo(f"forerun: {choice.note}", err=True)
    return engine


def in_steps(context: int) -> int:
    """The tokens that a cache is allocated for where this many are needed."""
    return -(-context // CONTEXT_STEP) * CONTEXT_STEP


def set_threads(values: dict[str, Any]) -> None:
    """Have torch and the CPU kernels use as many threads as `--threads` says."""
    with waiting("starting"):
        import torch

        from forerun.models.cpu import set_num_threads

    if values["threads"] is not None:
        set_num_threads(values["threads"])
        torch.set_num_threads(values["threads"])


def _names(kinds: Iterable[type]) -> set[str]:
    return {name for kind in kinds for name in schema_of(kind)}
