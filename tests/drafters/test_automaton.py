"""The suffix automaton against a search through all texts."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.automaton import (
    MOST_CHILDREN,
    MOST_COUNTED,
    ROOT,
    Match,
    SuffixAutomaton,
)
from forerun.drafters.suffix import BYTES_PER_TOKEN

TOKENS = st.integers(0, 2)
# Short enough for all suffixes to be counted.
TEXT = st.lists(TOKENS, max_size=MOST_COUNTED)


def build(texts: list[list[int]]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for text in texts:
        automaton.extend(text)
        automaton.end_text()
    return automaton


def places(texts: list[list[int]], wanted: list[int]) -> list[tuple[int, int]]:
    """Text and place after each occurrence."""
    return [
        (number, end)
        for number, text in enumerate(texts)
        for end in range(len(wanted), len(text) + 1)
        if text[end - len(wanted) : end] == wanted
    ]


def locate(automaton: SuffixAutomaton, wanted: list[int]) -> int | None:
    state = ROOT
    for token in wanted:
        state = automaton.step(state, token)
        if not state:
            return None
    return state


@given(TEXT)
def test_the_longest_ending_that_occurred_before(text: list[int]) -> None:
    """With each token: where it is, and what followed it how often."""
    automaton = SuffixAutomaton()
    for end in range(1, len(text) + 1):
        automaton.append(text[end - 1])
        state, so_far = automaton.link[automaton.last], text[:end]
        found = automaton.length[state]
        longest = next(
            length
            for length in range(end - 1, -1, -1)
            if len(places([so_far], so_far[end - length :])) > 1
        )
        assert found == longest
        if longest:
            ends = [at for _, at in places([so_far], so_far[end - longest :]) if at < end]
            counted = Counter(so_far[at] for at in ends)
            latest = {so_far[at]: at for at in ends}
            ranked = sorted(counted, key=lambda one: (counted[one], latest[one]), reverse=True)
            children = automaton.children(state)
            assert [token for token, _, _ in children] == ranked
            shares = [counted[one] / (counted.total() + 1) for one in ranked]
            assert [share for _, share, _ in children] == pytest.approx(shares)
            assert automaton.chain(state, 1, frozenset()) == ranked[:1]


@given(
    st.lists(st.lists(TOKENS, max_size=10), max_size=4), st.lists(TOKENS, min_size=1, max_size=4)
)
def test_substrings_of_all_texts_and_of_no_two(texts: list[list[int]], wanted: list[int]) -> None:
    automaton = build(texts)
    found = places(texts, wanted)
    state = locate(automaton, wanted)
    assert (state is not None) == bool(found)
    if state is not None:
        assert automaton.count[state] == len(found)
        following = {texts[number][at] for number, at in found if at < len(texts[number])}
        if following:
            assert {token for token, _, _ in automaton.children(state)} == following


@given(st.lists(st.lists(TOKENS, max_size=10), max_size=3), st.lists(TOKENS, max_size=12))
def test_a_match_is_the_longest_ending_in_the_texts(
    texts: list[list[int]], query: list[int]
) -> None:
    automaton = build(texts)
    match = Match(automaton, [])
    for end in range(1, len(query) + 1):
        match.extend(query[end - 1 : end])
        longest = next(
            length
            for length in range(end, -1, -1)
            if not length or places(texts, query[end - length : end])
        )
        state, length = match.longest()
        assert length == longest
        assert state == locate(automaton, query[end - longest : end])


@given(
    st.lists(st.lists(TOKENS, max_size=8), min_size=1, max_size=5), st.lists(TOKENS, max_size=12)
)
def test_a_match_in_an_automaton_that_grows(texts: list[list[int]], query: list[int]) -> None:
    """Whatever is added meanwhile, what it says holds: this ending is there, and in this state."""
    automaton = SuffixAutomaton()
    match = Match(automaton, [])
    for end in range(len(query) + 1):
        match.extend(query[max(end - 1, 0) : end])
        if texts:
            automaton.extend(texts.pop())
            automaton.end_text()
        state, length = match.longest()
        assert state == locate(automaton, query[end - length : end])
        assert (state == ROOT) == (length == 0)


def test_what_repeats_itself_goes_on() -> None:
    automaton = build([])
    automaton.extend([7, 1, 2, 3, 1, 2, 3])
    match = automaton.link[automaton.last]
    assert automaton.chain(match, 8, frozenset()) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert automaton.chain(match, 8, frozenset({3})) == [1, 2, 3]


def test_of_many_children_the_most_frequent_are_named() -> None:
    automaton = SuffixAutomaton()
    for token in [*range(1, 60), *range(50, 60)]:
        automaton.extend([0, token])
        automaton.end_text()
    children = automaton.children(locate(automaton, [0]) or -1)
    assert [token for token, _, _ in children] == list(range(59, 59 - MOST_CHILDREN, -1))


class Links(list[int]):
    """Suffix links that count how often they are followed."""

    read = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.read += 1
        return super().__getitem__(index)


class Counting(SuffixAutomaton):
    link: Links  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.link = Links(self.link)


@pytest.mark.parametrize("period", [1, 2, 9])
def test_repetition_takes_no_longer(period: int) -> None:
    automaton = Counting()
    text = [*range(period)] * (20_000 // period)
    automaton.extend(text)
    # A walk over all suffixes of each prefix would read them ten million times.
    assert automaton.link.read < 40 * len(text)
    assert len(automaton.length) <= len(text) + 2
    assert automaton.length[automaton.link[automaton.last]] == len(text) - period


@pytest.mark.parametrize("vocab_size", [2, 4, 30, 5000])
def test_memory_stays_within_its_bound(vocab_size: int) -> None:
    source = random.Random(0)
    text = [source.randrange(vocab_size) for _ in range(20_000)]
    tracemalloc.start()
    automaton = SuffixAutomaton()
    # Numbers of its own: small ones are in the interpreter already.
    automaton.extend(token + 100_000 for token in text)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held / len(text) <= BYTES_PER_TOKEN


def de_bruijn(order: int) -> list[int]:
    """Bits in which every word of `order` comes once: no ending is long before it is new."""
    seen, state, bits = {0}, 0, [0] * order
    mask = (1 << order) - 1
    while True:
        for bit in (1, 0):
            following = (state << 1 | bit) & mask
            if following not in seen:
                break
        else:
            return bits
        seen.add(following)
        state = following
        bits.append(bit)


def test_the_worst_text_stays_within_the_bound() -> None:
    text = de_bruijn(14)
    assert len(text) > 16_000
    tracemalloc.start()
    automaton = SuffixAutomaton()
    # Numbers of its own: small ones are in the interpreter already.
    automaton.extend(token + 100_000 for token in text)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held / len(text) <= BYTES_PER_TOKEN
