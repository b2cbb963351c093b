"""The modes of `forerun simulate`: what chooses one, and which options it reads."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import click
from click.core import ParameterSource

from forerun.cli.options import flag_of, given, stronger
from forerun.errors import ConfigError


class Mode(StrEnum):
    """What is asked."""

    SWEEP = "sweep"
    AGREEMENT = "agreement"
    TEXT = "text"
    PLAN = "plan"


# What chooses a mode; without any of these it is a sweep.
CHOOSES = {
    "agreement": Mode.AGREEMENT,
    "text": Mode.TEXT,
    "hardware": Mode.PLAN,
    "bandwidth": Mode.PLAN,
    "flops": Mode.PLAN,
}
_PLAN = (Mode.PLAN,)
# The modes that read an option; what is not here is read by all.
READ_BY: dict[str, tuple[Mode, ...]] = {
    "acceptance": (Mode.SWEEP, Mode.PLAN),
    "rounds": (Mode.SWEEP, Mode.AGREEMENT),
    **dict.fromkeys(("seed", "policy"), (Mode.SWEEP, Mode.TEXT)),
    **dict.fromkeys(("target_order", "draft_order", "unit", "num_tokens"), (Mode.TEXT,)),
    **dict.fromkeys(("target", "draft", "batch", "context"), _PLAN),
    **dict.fromkeys(("dtype", "draft_dtype", "cache_dtype", "memory", "overhead"), _PLAN),
    **dict.fromkeys(("num_devices", "parallel_efficiency"), _PLAN),
}
MODE_FLAGS = {
    Mode.AGREEMENT: "--agreement",
    Mode.TEXT: "--text",
    Mode.PLAN: "--hardware",
}


def find_mode(ctx: click.Context, values: dict[str, Any]) -> Mode:
    """What is asked; options that belong to something else are refused.

    Raises:
        ConfigError: naming the options that exclude each other, or the one that nobody reads.
    """
    chosen = ""
    for name in CHOOSES:
        if not given(ctx, name) or not values[name]:
            continue
        if not chosen or CHOOSES[name] is CHOOSES[chosen]:
            chosen = chosen or name
        else:
            chosen = stronger(ctx, chosen, name)
    mode = CHOOSES[chosen] if chosen else Mode.SWEEP
    for name, readers in READ_BY.items():
        if mode in readers or not insisted(ctx, name, chosen):
            continue
        flag = flag_of(ctx, name)
        if chosen:
            raise ConfigError(f"{flag} is not read with --{chosen}; leave it out.")
        flags = " or ".join(MODE_FLAGS[one] for one in readers)
        raise ConfigError(f"{flag} is not read without {flags}; add that or leave it out.")
    return mode


def insisted(ctx: click.Context, name: str, over: str = "") -> bool:
    """Whether an option must be read or refused: it comes from a flag or the file.

    A variable is for all commands and modes, and does not disturb where it is not read. Nor does
    what comes from a weaker place than the option `over` that chose what is read.
    """
    place = ctx.get_parameter_source(name)
    if place in (None, ParameterSource.DEFAULT, ParameterSource.ENVIRONMENT):
        return False
    chooser = ctx.get_parameter_source(over) if over else None
    assert place is not None
    return chooser is None or place <= chooser


def refuse_without(ctx: click.Context, name: str, other: str, is_there: bool) -> None:
    """Refuse an option that is of use with another one alone, which is not there.

    Raises:
        ConfigError: naming both.
    """
    if not is_there and insisted(ctx, name):
        raise ConfigError(f"{flag_of(ctx, name)} is of use with {other} alone; add it.")
