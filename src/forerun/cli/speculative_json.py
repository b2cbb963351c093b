"""`--speculative-config JSON`, as vLLM has it: one object with all that says how to speculate."""

from __future__ import annotations

from typing import Any

import click

from forerun.cli.config import as_text
from forerun.cli.derived import RENAMED
from forerun.cli.options import given, stronger
from forerun.engine.config import SpeculativeConfig
from forerun.engine.speculation_options import OWN_SECTIONS
from forerun.errors import ConfigError, UnknownNameError, shown
from forerun.files import parse_json
from forerun.options import schema_of

FLAG = "--speculative-config"


def read_speculative_json(ctx: click.Context, values: dict[str, Any]) -> None:
    """Put what the object says where the flags' own values are; a flag of a weaker source yields.

    Raises:
        ConfigError: for a value that the flag would not take, or that a flag gives too.
        UnknownNameError: for a key that is no option, listing those that are.
    """
    text, options = values["speculative_config"], {p.name: p for p in ctx.command.params}
    if text is None:
        return
    content = parse_json(text, FLAG, ConfigError)
    if not isinstance(content, dict):
        raise ConfigError(f'{FLAG} is {shown(text)}; give an object such as {{"method": "ngram"}}.')
    known = _keys()
    for key, value in content.items():
        if key not in known:
            raise UnknownNameError(f"key of {FLAG}", key, known)
        name = known[key]
        if value is None or (
            given(ctx, name) and stronger(ctx, "speculative_config", name) == name
        ):
            continue
        option, source = options[name], ctx.get_parameter_source("speculative_config")
        assert source is not None
        ctx.set_parameter_source(name, source)
        written = as_text(value, option, f"{key} of {FLAG}")
        ctx.params[name] = values[name] = option.process_value(ctx, written)


def _keys() -> dict[str, str]:
    """The parameter that each key of the object stands for."""
    names = [
        *schema_of(SpeculativeConfig),
        *(n for o in OWN_SECTIONS.values() for n in schema_of(o)),
    ]
    return {name: RENAMED.get(name, name) for name in names if name != "options"}
