"""Covering arrays: few cases in which all values, or all pairs of values, of several parameters occur."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*axes: Iterable[Any], fast: int = 1, whole: int = 2) -> list[Any]:
    """Cases for `parametrize`, from the product of the axes.

    Args:
        axes: values of each parameter; `pytest.param` may carry marks.
        fast: how many parameters are crossed in the cases that are not slow: with 1 each value occurs in
            them, with 2 each pair of values of two parameters.
        whole: the same for all cases; as many as there are axes means the product.
    """
    values = [list(axis) for axis in axes]
    chosen: list[tuple[int, ...]] = []
    for strength in (fast, whole):
        chosen += _missing(list(map(len, values)), min(strength, len(values)), chosen)
        if strength == fast:
            quick = len(chosen)
    return [
        _case([values[axis][at] for axis, at in enumerate(case)], place >= quick)
        for place, case in enumerate(chosen)
    ]


def _missing(
    sizes: Sequence[int], strength: int, before: Iterable[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Cases that, with those before, cover all combinations of so many axes; found greedily."""
    cases = {case: set(_covered(case, strength)) for case in product(*map(range, sizes))}
    left = set().union(*cases.values()) - set().union(*(cases[case] for case in before))
    found: list[tuple[int, ...]] = []
    while left:
        # Of equals that with the least in common with the last, so that the cases differ in all places.
        last = found[-1] if found else (-1,) * len(sizes)
        best = max(
            cases,
            key=lambda case: (
                len(cases[case] & left),
                -sum(a == b for a, b in zip(case, last, strict=True)),
            ),
        )
        found.append(best)
        left -= cases[best]
    return found


def _covered(case: tuple[int, ...], strength: int) -> Iterator[tuple[tuple[int, int], ...]]:
    return combinations(enumerate(case), strength)


def _case(values: list[Any], slow: bool) -> Any:
    marks: list[Any] = [pytest.mark.slow] if slow else []
    plain = []
    for value in values:
        if isinstance(value, type(pytest.param())):
            marks += value.marks
            (value,) = value.values
        plain.append(value)
    return pytest.param(*plain, marks=marks)
