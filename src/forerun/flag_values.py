"""Values of options from text, as a command line, variables and a file give them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from forerun.errors import ConfigError, shown
from forerun.flags import Flag, flags_of

# A range of more values is taken for a typing mistake.
MOST_VALUES = 4096
KILO = 1024
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def read_value(flag: Flag, text: str) -> Any:
    """Value of an option from text; a list or mapping for one that may be repeated.

    Raises:
        ValueError: saying what is wrong with it.
    """
    schema = flag.inner
    if flag.kind == "array":
        return _list(flag, schema["items"], text)
    if flag.kind == "object":
        return _pair(schema.get("additionalProperties"), text)
    return _single(schema, text, is_path=flag.is_path)


def _single(schema: Mapping[str, Any], text: str, *, is_path: bool = False) -> Any:
    kind = schema.get("type")
    if kind in ("integer", "number"):
        what, read = ("integer", int) if kind == "integer" else ("number", float)
        try:
            return read(text)
        except ValueError:
            raise ValueError(f"{shown(text)} is not a valid {what}.") from None
    if kind == "boolean":
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ValueError(f"{shown(text)} is neither true nor false.")
        return text.lower() in _TRUE
    if schema.get("minLength") and not text:
        what = "name a file" if is_path else "give a value"
        raise ValueError(f"it is empty; {what} or leave the option out.")
    if not is_path:
        # Python turns bytes of an argument that are not UTF-8 into surrogates.
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it is not UTF-8 text (character {error.start}).") from None
    return text


def _list(flag: Flag, entry: Mapping[str, Any], text: str) -> list[Any]:
    if flag.use.repeat:
        return [_single({**entry, "minLength": 1}, text, is_path=flag.is_path)]
    parts = [part.strip() for part in text.split(",")] if text else []
    if entry["type"] == "integer":
        return list(chain.from_iterable(map(_integers, parts)))
    if not all(parts):
        raise ValueError(f"{shown(text)} is not a list with commas between its entries.")
    return [_single(entry, part) for part in parts]


def _integers(text: str) -> range:
    """Integers of a part of a list: one, a range such as `1-12`, or `4k` for 4096."""
    first, dash, last = text.partition("-") if text[:1] != "-" else (text, "", "")
    try:
        start, end = (
            int(end[:-1]) * KILO if end[-1:].lower() == "k" else int(end)
            for end in (first, last if dash else first)
        )
    except ValueError:
        raise ValueError(
            f"{shown(text)} is not an integer; give a list such as 1-8,16 or 4k."
        ) from None
    if not 0 <= end - start < MOST_VALUES:
        raise ValueError(f"{shown(text)} is not a range of 1 to {MOST_VALUES} integers.")
    return range(start, end + 1)


def _pair(value: Any, text: str) -> dict[Any, Any]:
    """An entry of a mapping, `NAME=VALUE`: of numbers by id, or of anything that JSON can write."""
    name, equals, written = text.partition("=")
    if isinstance(value, Mapping) and value.get("type") == "number":
        try:
            return {int(name): float(written)}
        except ValueError:
            raise ValueError(f"{shown(text)} is not a pair such as 42=-1.5.") from None
    if not equals or not name.strip():
        raise ValueError(f"{shown(text)} is not NAME=VALUE such as enable_thinking=false.")
    # A template takes the text "False" for true.
    written = written.lower() if written in ("True", "False") else written
    with suppress(ValueError, RecursionError):
        return {name.strip(): json.loads(written, parse_constant=int)}
    return {name.strip(): written}


def from_variables(kind: type) -> dict[str, Any]:
    """Values that `FORERUN_<NAME>` variables give to options of a request, by name.

    Raises:
        ConfigError: for a value that cannot be read.
    """
    variables = {flag.name: f"FORERUN_{flag.name.upper()}" for flag in flags_of(kind)}
    texts = {
        name: os.environ[variable] for name, variable in variables.items() if variable in os.environ
    }
    return from_texts(kind, texts, variables.__getitem__)


def from_texts(
    kind: type, texts: Mapping[str, str], written: Callable[[str], str] = str
) -> dict[str, Any]:
    """Values of options that are given as text, by name; names that a request does not have stay texts.

    Raises:
        ConfigError: for a value that cannot be read.
    """
    values = dict[str, Any](texts)
    for flag in flags_of(kind):
        if flag.name not in texts:
            continue
        try:
            value = read_value(flag, texts[flag.name])
            values[flag.name] = joined(flag, [value]) if flag.repeated else value
        except ValueError as error:
            raise ConfigError(f"{written(flag.name)}: {error}") from None
    return values


def joined(flag: Flag, values: Sequence[Any]) -> Any:
    """Values of a repeated option as one list or mapping.

    Raises:
        ValueError: for a name that is given twice, and for a list without values.
    """
    if flag.kind == "array":
        entries = tuple(chain.from_iterable(values))
        if not entries and flag.default:
            raise ValueError("the list is empty; give at least one value.")
        return entries
    made: dict[Any, Any] = {}
    for value in values:
        for name in value:
            if name in made:
                raise ValueError(f"it gives {name} twice; give it once.")
        made |= value
    return made
