"""Every outcome that code can have with its random numbers is found, with its probability."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.randomness import Purpose, Randomness
from forerun.testing.enumeration import NoiseError, outcomes


def draw(randomness: Randomness, node: int) -> float:
    return randomness.uniform(0, 5, Purpose.DRAFT, node)


@given(st.lists(st.floats(0.0, 1.0, exclude_min=True), min_size=1, max_size=4, unique=True))
@settings(max_examples=25)
def test_edges_are_located_to_the_last_bits(edges: list[float]) -> None:
    results = outcomes(lambda source: sum(draw(source, 0) >= edge for edge in edges), lambda x: x)
    bounds = [0.0, *sorted(edges), 1.0]
    truth = {rank: high - low for rank, (low, high) in enumerate(itertools.pairwise(bounds))}
    shares = dict.fromkeys(truth, 0.0)
    for share, rank in results:
        shares[rank] += share
    assert shares == pytest.approx(truth, abs=1e-13)


def test_later_numbers_may_depend_on_earlier_ones() -> None:
    def run(source: Randomness) -> str:
        if draw(source, 0) < 0.25:
            return "a"
        return "b" if draw(source, 1) < 1 / 3 else "c"

    shares = {result: share for share, result in outcomes(run, str)}
    assert shares == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5}, abs=1e-13)


def test_a_number_drawn_twice_is_the_same_number() -> None:
    """Independent numbers would hide the defect of reusing a number."""
    results = outcomes(lambda source: (draw(source, 0) < 0.5, draw(source, 0) < 0.5), lambda x: x)
    assert {result for _, result in results} == {(True, True), (False, False)}


def test_noise_cannot_be_enumerated() -> None:
    with pytest.raises(NoiseError, match="uniforms"):
        outcomes(lambda source: source.gumbel(0, 1, 3), str)


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.6), (0.1, 0.2)])
def test_an_edge_that_only_a_later_number_shows_is_found(low: float, high: float) -> None:
    def run(source: Randomness) -> bool:
        bound = low if draw(source, 0) < 0.3 else high
        return draw(source, 1) < bound

    share = sum(share for share, is_below in outcomes(run, bool) if is_below)
    assert share == pytest.approx(0.3 * low + 0.7 * high, abs=1e-13)
