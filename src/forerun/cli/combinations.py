"""Options that contradict each other, or that would not be read."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.derived import speculation_options
from forerun.cli.options import flag_of, given, stronger
from forerun.errors import ConfigError

if TYPE_CHECKING:
    from forerun.engine.config import SpeculativeConfig

# An option, and the option without which it is not read.
OF_USE_WITH = (
    ("compare_rounds", "compare"),
    ("logprobs_mode", "logprobs"),
)


def settle(ctx: click.Context, values: dict[str, Any]) -> None:
    """Refuse options of one run that contradict each other; an option from a weaker source yields.

    Raises:
        ConfigError: naming both, and which to add or to leave out.
    """
    _settle_prompt(ctx, values)
    settle_speculation(ctx, values)
    if not values["speculative"]:
        values["compare"] = False
    if values["show_rounds"] and values["compare"]:
        raise ConfigError(
            "--show-rounds shows a single run, --compare makes several; leave one out."
        )
    if values["session"] is not None and values["compare"]:
        raise ConfigError(
            "--compare times whole runs, which a --session would cut short; leave one out."
        )
    for name, other in OF_USE_WITH:
        _needs(ctx, values, name, other)
    if given(ctx, "suffix_store_tokens"):
        raise ConfigError(
            f"{flag_of(ctx, 'suffix_store_tokens')} keeps outputs for later requests, and one run has none; "
            "leave it out, or use --corpus with earlier answers, or forerun chat."
        )
    if values["logprobs"] is not None and not values["json"]:
        raise ConfigError("--logprobs are part of the JSON object; add --json.")


def settle_speculation(ctx: click.Context, values: dict[str, Any]) -> None:
    """The same of the options that say how to speculate."""
    if not values["speculative"]:
        _refuse_speculation(ctx)
    _needs(ctx, values, "num_tree_nodes", "tree")


def _needs(ctx: click.Context, values: dict[str, Any], name: str, other: str) -> None:
    if given(ctx, name) and (values[other] is None or values[other] is False):
        raise ConfigError(
            f"{flag_of(ctx, name)} is only of use with {flag_of(ctx, other)}; add it."
        )


def _settle_prompt(ctx: click.Context, values: dict[str, Any]) -> None:
    for name, other in combinations(("text", "prompt", "prompt_file", "messages"), 2):
        _exclude(ctx, values, name, other)
    if values["text"] is not None:
        values["prompt"] = values["text"]
    if values["raw"]:
        for name in ("messages", "system", "template_var"):
            _exclude(ctx, values, "raw", name)


def check_prediction(config: SpeculativeConfig, file: str | None) -> None:
    """Refuse a `--prediction-file` that no method reads, and method `prediction` without one.

    Raises:
        ConfigError: naming the method.
    """
    reads = any(drafter.reads_predictions for drafter in config.drafters)
    if file is not None and not reads:
        raise ConfigError(
            f"--prediction-file is not read by method {config.method!r}; "
            "leave it out or use --method prediction."
        )
    if file is None and config.method == "prediction":
        raise ConfigError(
            "method 'prediction' drafts from a predicted output; add --prediction-file."
        )


def check_context(max_context: int | None, longest: int, model: str) -> None:
    """Refuse a `--max-context` above the model's own.

    Raises:
        ConfigError: with the model's number.
    """
    if max_context is not None and max_context > longest:
        raise ConfigError(
            f"--max-context is {max_context}; the context of {model} is {longest} tokens, "
            "give at most that."
        )


def _refuse_speculation(ctx: click.Context) -> None:
    names = [str(option.name) for option in speculation_options()]
    for name in (*names, "compare", "prediction_file", "show_rounds"):
        if name in ctx.params and given(ctx, name) and stronger(ctx, "speculative", name) == name:
            raise ConfigError(
                f"{flag_of(ctx, name)} needs speculation, which is switched off; add --speculative."
            )


def _exclude(ctx: click.Context, values: dict[str, Any], name: str, other: str) -> None:
    if given(ctx, name) and given(ctx, other):
        values[other if stronger(ctx, name, other) == name else name] = None


def yields(ctx: click.Context, name: str, others: tuple[str, ...]) -> bool:
    """Whether one of the others comes from a stronger source than the option."""
    source = ctx.get_parameter_source(name)
    assert source is not None
    sources = [ctx.get_parameter_source(other) for other in others if given(ctx, other)]
    return any(other is not None and other < source for other in sources)
