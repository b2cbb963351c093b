"""Prompt lookup against a slow search that is plainly right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import Plan, Sequence
from forerun.drafters.ngram import NgramDrafter
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.randomness import Randomness


def slow_lookup(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    for size in range(longest, shortest - 1, -1):
        if size >= len(tokens):
            continue
        ending = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == ending:
                text = list(tokens)
                for _ in range(count):
                    text.append(text[start + size + len(text) - len(tokens)])
                return text[len(tokens) :]
    return []


def lookup(drafter: NgramDrafter, sequence: Sequence, count: int) -> list[int]:
    draft = drafter.propose([sequence], [Plan(count)], Randomness())[0]
    assert draft.probs is None
    assert draft.is_chain
    return list(draft.token_ids)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=5),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_it_finds_the_latest_copy_of_the_longest_ending(
    prompt: list[int], rounds: list[list[int]], shortest: int, more: int
) -> None:
    """Also while the sequence grows, with an index that is only ever extended."""
    drafter = NgramDrafter(shortest, shortest + more)
    sequence = Sequence(0, list(prompt), len(prompt), SamplingParams(), seed=0)
    for emitted in [[], *rounds]:
        sequence.extend(emitted)
        expected = slow_lookup(sequence.token_ids, shortest, shortest + more, 5)
        assert lookup(drafter, sequence, 5) == expected


def test_a_period_goes_on() -> None:
    sequence = Sequence(0, [7, 1, 2, 3, 1, 2, 3], 7, SamplingParams(), seed=0)
    assert lookup(NgramDrafter(2, 4), sequence, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_requests_do_not_see_each_other_and_are_forgotten() -> None:
    drafter = NgramDrafter(1, 2)
    first = Sequence(0, [1, 2, 3, 1], 4, SamplingParams(), seed=0)
    second = Sequence(1, [1], 1, SamplingParams(), seed=0)
    assert lookup(drafter, first, 2) == [2, 3]
    assert lookup(drafter, second, 2) == []
    drafter.release(first)
    assert lookup(drafter, Sequence(0, [9, 1], 2, SamplingParams(), seed=0), 2) == []


@pytest.mark.parametrize(("low", "high"), [(0, 2), (3, 2)])
def test_sizes_out_of_order_are_refused(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match="1 <= min <= max"):
        NgramDrafter(low, high)
