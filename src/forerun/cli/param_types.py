"""How the command line reads values: text, files, lists, pairs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from forerun.cli.completion import matching


class Whole(click.ParamType[str]):
    """Text that is never split, also not where it comes from a variable."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # Python turns bytes of an argument that are not UTF-8 into surrogates.
            self.fail(f"it is not UTF-8 text (character {error.start}).", param, ctx)
        return text


class Name(Whole):
    """Text that is not empty: what names a model, a method or a device.

    Args:
        known: names that a shell offers.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = known

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return matching(self._known, incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value):
            self.fail("it is empty; give a value or leave the option out.", param, ctx)
        return super().convert(value, param, ctx)


class FileName(click.ParamType[str]):
    """A file's name, which need not be UTF-8, but not be empty."""

    name = "file"
    # Of several in a variable, as in PATH.
    envvar_list_splitter = os.pathsep

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("it is empty; name a file or leave the option out.", param, ctx)
        return str(value)


class Listed(click.ParamType[tuple[Any, ...]]):
    """Entries with commas between them.

    Args:
        entry: int, or str for names.
        name: what the help calls them.
    """

    def __init__(self, entry: type, name: str) -> None:
        self.entry, self.name = entry, name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        parts = value if isinstance(value, (tuple, list)) else str(value).split(",")
        try:
            entries = tuple(self.entry(part) for part in parts)
        except ValueError:
            self.fail(f"{value!r} is not a list of integers such as 3,4,6.", param, ctx)
        if self.entry is int:
            return entries
        names = tuple(name.strip() for name in entries)
        if not all(names):
            self.fail(f"{value!r} is not a list of names with commas between them.", param, ctx)
        return names


class Pair(click.ParamType[tuple[int, float]]):
    """`ID=VALUE`: a number for a token."""

    name = "id=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        token, _, number = value.partition("=")
        try:
            return int(token), float(number)
        except ValueError:
            self.fail(f"{value!r} is not a pair such as 42=-1.5.", param, ctx)


class Variable(Whole):
    """`NAME=VALUE`, of which JSON's true, false, numbers, lists and objects are read as such."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, text = super().convert(value, param, ctx).partition("=")
        if not equals or not name.strip():
            self.fail(f"{value!r} is not NAME=VALUE such as enable_thinking=false.", param, ctx)
        # A template takes the text "False" for true.
        written = text.lower() if text in ("True", "False") else text
        with suppress(ValueError, RecursionError):
            return name.strip(), json.loads(written, parse_constant=int)
        return name.strip(), text


def type_of(name: str, schema: Mapping[str, Any]) -> click.ParamType[Any]:
    """How the value of an option is read.

    Args:
        name: of the option; its last word names the entries of a list in the help.
        schema: its JSON schema; see `forerun.options.schema_of`.
    """
    inner = next((some for some in schema.get("anyOf", ()) if some["type"] != "null"), schema)
    kind = inner["type"]
    if kind == "array":
        entry = inner["items"]["type"]
        if schema.get("repeat"):
            return FileName() if schema["repeat"] == "path" else Whole()
        return Listed(int if entry == "integer" else str, name.rpartition("_")[2])
    types: dict[str, click.ParamType[Any]] = {
        "integer": click.INT,
        "number": click.FLOAT,
        "boolean": click.BOOL,
        "object": Pair(),
    }
    return types.get(kind, Name(inner.get("enum", ())))
