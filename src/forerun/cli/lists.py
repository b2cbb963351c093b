"""Options that are lists: numbers with commas between them, flags that may be repeated."""

from __future__ import annotations

from itertools import chain
from typing import Any

import click

from forerun.cli.options import Option
from forerun.errors import shown

# A range of more values is taken for a typing mistake.
MOST_VALUES = 4096
KILO = 1024


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them, each in a range.

    Args:
        low, high: the range.
    """

    name = "list"

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        numbers = tuple(chain(*(self._read(part.strip(), param, ctx) for part in value.split(","))))
        for number in numbers:
            # NaN is in no range.
            if not self.low <= number <= self.high:
                self.fail(
                    f"{shown(number)} is not in [{self.low:.10g}, {self.high:.10g}].", param, ctx
                )
        return numbers

    def _read(
        self, part: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            return (float(part),)
        except ValueError:
            self.fail(f"{part!r} is not a number; give a list such as 0.5,0.8.", param, ctx)


class Wholes(Numbers):
    """Integers and ranges such as `1-12`; `4k` is 4096."""

    def _read(
        self, part: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        first, dash, last = part.partition("-") if part[:1] != "-" else (part, "", "")
        try:
            start = _whole(first)
            end = _whole(last) if dash else start
        except ValueError:
            self.fail(f"{part!r} is not an integer; give a list such as 1-8,16 or 4k.", param, ctx)
        if not 0 <= end - start < MOST_VALUES:
            self.fail(f"{part!r} is not a range of 1 to {MOST_VALUES} integers.", param, ctx)
        return tuple(range(start, end + 1))


def _whole(text: str) -> int:
    return int(text[:-1]) * KILO if text[-1:].lower() == "k" else int(text)


def list_option(name: str, section: str, kind: Numbers, default: str | None, text: str) -> Option:
    def join(ctx: click.Context, param: click.Parameter, value: Any) -> tuple[Any, ...]:
        values = tuple(dict.fromkeys(chain(*(value or ()))))
        if not values and default is not None:
            raise click.BadParameter("the list is empty; give at least one value.", ctx, param)
        return values

    return Option(
        name,
        section,
        type=kind,
        multiple=True,
        default=None if default is None else (default,),
        callback=join,
        help=text,
    )
