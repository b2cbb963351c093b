"""Prompt lookup against a slow search that is plainly right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import Draft, Plan, Request
from forerun.drafters.ngram import MOST_POSITIONS, NgramDrafter
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


def lookup(drafter: NgramDrafter, request: Request, count: int) -> list[int]:
    draft = drafter.propose([request], [Plan(count)], Randomness())[0]
    assert draft.probs is None
    assert draft.tree.is_chain
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
    """Also while the request grows, with an index that is only ever extended."""
    drafter = NgramDrafter(shortest, shortest + more)
    request = Request(0, list(prompt), len(prompt), SamplingParams(), seed=0)
    for emitted in [[], *rounds]:
        request.extend(emitted)
        expected = slow_lookup(request.token_ids, shortest, shortest + more, 5)
        assert lookup(drafter, request, 5) == expected


def grow(drafter: NgramDrafter, tokens: list[int], plan: Plan, stop: int = -1) -> Draft:
    stops = frozenset({stop})
    request = Request(0, tokens, len(tokens), SamplingParams(), seed=0, stop_token_ids=stops)
    return drafter.propose([request], [plan], Randomness())[0]


def slow_places(tokens: list[int], shortest: int, longest: int) -> list[int]:
    """Where the text may go on: longer endings first, then later ones."""
    found: list[int] = []
    for size in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:] and start + size not in found:
                found.append(start + size)
    return found[:MOST_POSITIONS]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 3), st.integers(0, 2))
def test_a_tree_goes_on_from_all_places(tokens: list[int], shortest: int, more: int) -> None:
    """With room for everything, its paths are the continuations of the latest places, and the first
    path is the chain of the place of the longest ending."""
    drafter = NgramDrafter(shortest, shortest + more)
    tree = grow(drafter, tokens, Plan(3, num_nodes=100))
    expected = set()
    for place in slow_places(tokens, shortest, shortest + more):
        text = list(tokens)
        for _ in range(3):
            text.append(text[place + len(text) - len(tokens)])
            expected.add(tuple(text[len(tokens) :]))
    taken = [tuple(tree.tokens_to(node)) for node in range(len(tree))]
    assert set(taken) == expected
    assert len(taken) == len(expected)


def test_longer_endings_come_first_and_shorter_ones_fill_the_rest() -> None:
    tokens = [2, 5, 2, 5, 1, 2, 4, 9, 1, 2]
    drafter = NgramDrafter(1, 3)
    assert grow(drafter, tokens, Plan(1, num_nodes=1)).token_ids == (4,)
    assert grow(drafter, tokens, Plan(1, num_nodes=9)).token_ids == (4, 5)
    # The more frequent first, of equals the later.
    tokens = [1, 2, 5, 1, 2, 4, 1, 2, 5, 1, 2, 3, 1, 2]
    tree = grow(NgramDrafter(2, 3), tokens, Plan(1, num_nodes=9))
    assert tree.token_ids == (5, 3, 4)


def test_nothing_follows_a_stop_token_in_a_tree() -> None:
    tree = grow(NgramDrafter(1, 3), [1, 2, 3, 4, 5, 1, 2], Plan(9, num_nodes=9), stop=4)
    assert tree.token_ids == (3, 4)


def test_more_is_expected_of_larger_ngrams() -> None:
    drafter = NgramDrafter(1, 4)
    texts = [[5, 1], [1, 5, 1], [1, 2, 5, 1, 2], [1, 2, 3, 5, 1, 2, 3], [1, 2, 3, 4, 5, 1, 2, 3, 4]]
    found = [
        drafter.confidence(Request(number, text, 1, SamplingParams(), seed=0))
        for number, text in enumerate(texts)
    ]
    assert found == sorted(found)
    assert found[0] == 0.0 < found[1]


def test_a_period_goes_on() -> None:
    request = Request(0, [7, 1, 2, 3, 1, 2, 3], 7, SamplingParams(), seed=0)
    assert lookup(NgramDrafter(2, 4), request, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_requests_do_not_see_each_other_and_are_forgotten() -> None:
    drafter = NgramDrafter(1, 2)
    first = Request(0, [1, 2, 3, 1], 4, SamplingParams(), seed=0)
    second = Request(1, [1], 1, SamplingParams(), seed=0)
    assert lookup(drafter, first, 2) == [2, 3]
    assert lookup(drafter, second, 2) == []
    drafter.release(first)
    assert lookup(drafter, Request(0, [9, 1], 2, SamplingParams(), seed=0), 2) == []


@pytest.mark.parametrize(("low", "high"), [(0, 2), (3, 2)])
def test_sizes_out_of_order_are_refused(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match="prompt_lookup_min is"):
        NgramDrafter(low, high)
