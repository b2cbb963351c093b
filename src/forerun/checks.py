"""Checks that dataclasses of options are made of: wrong types and ranges, told in one line."""

from __future__ import annotations

import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from forerun.errors import ConfigError, UnknownNameError

Check = Callable[[str, Any], Any]
"""`check(name, value)` returns the value in its own type or raises ConfigError with the name."""


def normalize(options: Any, checks: Mapping[str, Check]) -> None:
    """Put each field of a frozen dataclass through its check, and keep what the check returns.

    Raises:
        ConfigError: naming the field, what it is and what is allowed.
    """
    for name, check in checks.items():
        object.__setattr__(options, name, check(name, getattr(options, name)))


def refuse_unknown(kind: str, values: Iterable[str], owner: type) -> None:
    """Refuse names that are no fields of the dataclass `owner`.

    Raises:
        UnknownNameError: listing the fields.
    """
    known = [field.name for field in fields(owner)]
    for name in values:
        if name not in known:
            raise UnknownNameError(kind, name, known)


def whole(low: int, high: int) -> Check:
    """An integer of any library, a bool excepted, as an int."""

    def check(name: str, value: Any) -> int:
        try:
            found = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            found = None
        if found is None or not low <= found <= high:
            raise ConfigError(
                f"{name} is {shown(value)}; it must be an integer in [{low}, {high}]."
            )
        return found

    return check


def number(low: float, high: float, *, above: bool = False) -> Check:
    """A real number in [low, high], or in (low, high] if it must lie above, as a float."""

    def check(name: str, value: Any) -> float:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        # NaN is in no range.
        if not real or not low <= value <= high or (above and value == low):
            bracket = "(" if above else "["
            raise ConfigError(
                f"{name} is {shown(value)}; it must be a number in {bracket}{low:g}, {high:g}]."
            )
        return float(value)

    return check


def one_of(known: Iterable[str]) -> Check:
    """One of these names."""
    names = list(known)

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {shown(value)}; it must be one of {', '.join(names)}.")
        if value not in names:
            raise UnknownNameError(name, value, names)
        return value

    return check


def optional(check: Check) -> Check:
    """None, or what `check` takes."""
    return lambda name, value: None if value is None else check(name, value)


def several(check: Check) -> Check:
    """Any collection but text of what `check` takes, as a tuple."""

    def check_all(name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise ConfigError(f"{name} is {shown(value)}; it must be a list or tuple.")
        return tuple(check(f"entry of {name}", entry) for entry in value)

    return check_all


def switch(name: str, value: Any) -> bool:
    """True or False, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}; it must be True or False.")
    return value


def text(name: str, value: Any) -> str:
    """Text that is not empty and can be written as UTF-8, or a path as text."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str) or not found:
        raise ConfigError(f"{name} is {shown(value)}; it must be text, not empty.")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} is not UTF-8 text (character {error.start}); give it in UTF-8."
        ) from None
    return found


def shown(value: Any) -> str:
    """A value on one line, cut where it is long."""
    line = " ".join(repr(value).split())
    return line if len(line) <= 60 else f"{line[:57]}..."
