"""`forerun simulate`: the gain of speculation by formula, simulation and cost model."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from forerun.cli.options import Command, flag_of, given, stronger
from forerun.cli.results import check_plot, give
from forerun.cli.simulate_flags import simulate_options
from forerun.cli.simulate_modes import Mode, find_mode, refuse_without
from forerun.errors import ConfigError

if TYPE_CHECKING:
    from forerun.report.result import Result

T = TypeVar("T")


@click.pass_context
def simulate(ctx: click.Context, /, **values: Any) -> None:
    """What speculation would gain: by formula, by simulation, on hardware you don't have.

    Without --text or --hardware: speed-up over length for acceptances and cost
    ratios. Numbers go to standard output, what their marks mean to standard error. No model is run.
    """
    mode = find_mode(ctx, values)
    check_plot(values["plot"])
    result = RUN[mode](ctx, values)
    give(result, values)


def _sweep(ctx: click.Context, values: dict[str, Any]) -> Result:
    from forerun.simulation.sweep import Request, sweep

    simulated = values["rounds"] is not None or values["policy"] == "adaptive"
    refuse_without(ctx, "seed", "--rounds", simulated)
    return sweep(_request(Request, values))


def _text(_: click.Context, values: dict[str, Any]) -> Result:
    from forerun.simulation.text import Request, read_text, simulate_text

    return simulate_text(_request(Request, values), read_text(values["text"]))


def _plan(ctx: click.Context, values: dict[str, Any]) -> Result:
    from forerun.simulation.hardware import Request, known_models
    from forerun.simulation.planning import plan

    if values["target"] is None:
        raise ConfigError(
            f"--hardware needs --target, a count such as 70B or one of {known_models()}."
        )
    refuse_without(ctx, "parallel_efficiency", "--num-devices", values["num_devices"] > 1)
    return plan(_request(Request, values, **_drafts(ctx, values)))


def _request(kind: type[T], values: dict[str, Any], **own: Any) -> T:
    """The settings of a mode: the options of the same names, but for its own."""
    return kind(**{field.name: values[field.name] for field in fields(kind)} | own)  # type: ignore[arg-type]


def _drafts(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """A draft model, or the cost of a drafted token; the stronger source where both are given."""
    named, by_ratio = values["draft"] is not None, given(ctx, "cost_ratio")
    if named and by_ratio:
        named = stronger(ctx, "draft", "cost_ratio") == "draft"
        by_ratio = not named
    if values["draft_window"] is not None and (named or by_ratio):
        other = "--draft" if named else "--cost-ratio"
        raise ConfigError(
            f"--draft-window has the target draft for itself and {other} says how else drafts are made; "
            "give one of them."
        )
    draft = values["draft"] if named else "none"
    refuse_without(ctx, "draft_dtype", "a --draft model", draft.lower() != "none")
    if by_ratio and len(values["cost_ratio"]) != 1:
        raise ConfigError(
            f"{flag_of(ctx, 'cost_ratio')} is a list; give one number with --hardware."
        )
    return {"draft": draft, "cost_ratio": values["cost_ratio"][0] if by_ratio else None}


RUN = {Mode.SWEEP: _sweep, Mode.TEXT: _text, Mode.PLAN: _plan}

command = Command(
    "simulate",
    params=simulate_options(),
    callback=simulate,
    example="forerun simulate --hardware h100 --target llama-3.1-70b --draft llama-3.1-8b",
    assumed="assuming usual acceptances and a draft at a tenth of the target's cost",
)
