"""Covering arrays have every value, or every pair of values, in few cases."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.helpers.covering import covering

AXES = ["abc", (1, 2, 3, 4), (False, True), "xy"]


@pytest.mark.parametrize("strength", [1, 2, 3, 4])
def test_all_combinations_of_so_many_parameters_occur(strength: int) -> None:
    cases = [case.values for case in covering(*AXES, fast=1, whole=strength)]
    assert len(set(cases)) == len(cases)
    for places in combinations(range(len(AXES)), strength):
        met = {tuple(case[place] for place in places) for case in cases}
        assert met == {*product(*(AXES[place] for place in places))}
    assert len(cases) <= {1: 4, 2: 14, 3: 32, 4: 48}[strength]


def test_what_is_not_slow_covers_less() -> None:
    cases = covering(*AXES, fast=2, whole=4)
    quick = [case.values for case in cases if not case.marks]
    assert quick == [case.values for case in covering(*AXES, fast=2, whole=2)]
    assert len(cases) == 48


def test_marks_of_values_stay() -> None:
    cases = covering(["a", pytest.param("b", marks=pytest.mark.zoo)], [1, 2])
    assert {mark.name for case in cases if case.values[0] == "b" for mark in case.marks} >= {"zoo"}
