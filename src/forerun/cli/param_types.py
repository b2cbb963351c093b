"""How the command line reads values: text, files, lists, pairs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
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
