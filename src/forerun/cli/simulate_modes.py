"""The modes of `forerun simulate`: which options choose a mode, and which it uses."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import click
from click.core import ParameterSource

from forerun.cli.options import flag_of, given, stronger
from forerun.errors import ConfigError


class Mode(StrEnum):
    """The question to answer."""

    SWEEP = "sweep"
    TEXT = "text"
    PLAN = "plan"


# The options that choose a mode; without any of them it is a sweep.
CHOOSES = {
    "text": Mode.TEXT,
    "hardware": Mode.PLAN,
    "bandwidth": Mode.PLAN,
    "flops": Mode.PLAN,
}
_PLAN = (Mode.PLAN,)
# The modes that use an option; options that are not here are used by all.
USED_BY: dict[str, tuple[Mode, ...]] = {
    "acceptance": (Mode.SWEEP, Mode.PLAN),
    "rounds": (Mode.SWEEP,),
    **dict.fromkeys(("seed", "policy"), (Mode.SWEEP, Mode.TEXT)),
    **dict.fromkeys(("target_order", "draft_order", "unit", "num_tokens"), (Mode.TEXT,)),
    **dict.fromkeys(("target", "draft", "draft_window", "batch", "context"), _PLAN),
    **dict.fromkeys(("dtype", "draft_dtype", "cache_dtype", "memory", "overhead"), _PLAN),
    **dict.fromkeys(("num_devices", "parallel_efficiency"), _PLAN),
}
MODE_FLAGS = {
    Mode.TEXT: "--text",
    Mode.PLAN: "--hardware",
}


def find_mode(ctx: click.Context, values: dict[str, Any]) -> Mode:
    """The mode that the options choose; options of other modes are refused.

    Raises:
        ConfigError: naming the options that exclude each other, or the one that is not used.
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
    for name, users in USED_BY.items():
        if mode in users or not explicit(ctx, name, chosen):
            continue
        flag = flag_of(ctx, name)
        if chosen:
            raise ConfigError(f"{flag} is not used with --{chosen}; leave it out.")
        flags = " or ".join(MODE_FLAGS[user] for user in users)
        raise ConfigError(f"{flag} is only used with {flags}; add that or leave it out.")
    return mode


def explicit(ctx: click.Context, name: str, over: str = "") -> bool:
    """Whether an option must be used or refused: it comes from a flag or the file.

    A variable is for all commands and modes, and is ignored where it has no use. So is an option
    from a weaker source than `over`, the option that chose the mode.
    """
    source = ctx.get_parameter_source(name)
    if source in (None, ParameterSource.DEFAULT, ParameterSource.ENVIRONMENT):
        return False
    chooser = ctx.get_parameter_source(over) if over else None
    assert source is not None
    return chooser is None or source <= chooser


def refuse_without(ctx: click.Context, name: str, other: str, is_there: bool) -> None:
    """Refuse an option that is only of use with another one, which is missing.

    Raises:
        ConfigError: naming both.
    """
    if not is_there and explicit(ctx, name):
        raise ConfigError(f"{flag_of(ctx, name)} is only of use with {other}; add it.")
