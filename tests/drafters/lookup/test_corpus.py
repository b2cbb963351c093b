"""The index of a corpus against a slow search that is plainly right."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.lookup.corpus import (
    LONGEST_MATCH,
    MOST_PLACES,
    SEPARATOR,
    SHORTEST_MATCH,
    TOKENS_PER_OWN,
    Corpus,
    Quote,
    sorted_positions,
    with_separators,
)

TOKENS = st.integers(0, 2)
TEXTS = st.lists(st.lists(TOKENS, max_size=30), max_size=5)
NO_STOPS: frozenset[int] = frozenset()


def slow_match(texts: list[list[int]], ending: list[int]) -> tuple[set[int], int]:
    """Places, counted with the separators, and the length of the longest match."""
    joined = with_separators(texts).tolist()
    for length in range(min(len(ending), LONGEST_MATCH), SHORTEST_MATCH - 1, -1):
        places = {
            at
            for at in range(length, len(joined))
            if joined[at - length : at] == ending[-length:] and joined[at] != SEPARATOR
        }
        if places:
            return places, length
    return set(), 0


@given(TEXTS, st.lists(TOKENS, max_size=12), st.integers(SHORTEST_MATCH, 7))
def test_it_finds_the_longest_ending_that_goes_on(
    texts: list[list[int]], text: list[int], least: int
) -> None:
    places, length = Corpus.of(texts).match(text, least)
    expected, longest = slow_match(texts, text)
    if longest < least:
        assert (places, length) == ((), 0)
        return
    assert length == longest
    assert set(places) <= expected
    assert len(places) == len(set(places)) >= min(len(expected), MOST_PLACES)
    if len(expected) <= MOST_PLACES:
        assert set(places) == expected


@given(
    TEXTS.filter(any),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 29), st.integers(1, 30)), max_size=6),
    st.integers(1, 5),
    st.lists(st.sampled_from([0, 0, 0, 1, 2, 30]), min_size=1, max_size=9),
)
def test_a_text_that_grows_finds_what_a_search_would(
    texts: list[list[int]], pieces: list[tuple[int, int, int]], step: int, lengths: list[int]
) -> None:
    """Of pieces of the texts, so that matches grow, to the ends of texts too."""
    text = [
        token
        for place, start, count in pieces
        for token in texts[place % len(texts)][start : start + count]
    ]
    quote = Quote(Corpus.of(texts))
    for end in range(0, len(text) + 1, step):
        expected, longest = slow_match(texts, text[:end])
        counts_as, above = longest // TOKENS_PER_OWN, lengths[end % len(lengths)]
        for _ in range(2):
            places, length = quote.longest(text[:end], above)
            assert length == (counts_as if counts_as > above else 0)
            assert set(places) <= expected
            assert bool(places) == bool(length)


@given(st.lists(st.lists(TOKENS, max_size=200), max_size=3))
def test_positions_are_in_the_order_of_what_stands_before(texts: list[list[int]]) -> None:
    token_ids = with_separators(texts)
    read = [token if token != SEPARATOR else 9 for token in token_ids.tolist()]
    inside = [
        at
        for at in range(1, len(read))
        if token_ids[at - 1] != SEPARATOR and token_ids[at] != SEPARATOR
    ]
    keys = {at: read[max(at - LONGEST_MATCH, 0) : at][::-1] for at in inside}
    found = sorted_positions(token_ids).tolist()
    assert sorted(found) == inside
    assert [keys[at] for at in found] == sorted(keys.values())


def test_a_match_beyond_what_is_compared_goes_on() -> None:
    long = list(range(3 * LONGEST_MATCH))
    corpus = Corpus.of([long])
    places, length = corpus.match(long[:-2])
    assert length == LONGEST_MATCH
    assert corpus.chain(places, 9, NO_STOPS) == long[-2:]


def test_the_most_frequent_continuation_comes_first() -> None:
    corpus = Corpus.of([[1, 2, 3, 7, 7], [1, 2, 3, 8, 9], [0, 1, 2, 3, 8, 6]])
    places, length = corpus.match([5, 1, 2, 3])
    assert length == 3
    assert [(token, share) for token, share, _ in corpus.children(places)] == [(8, 0.5), (7, 0.25)]
    assert corpus.chain(places, 1, NO_STOPS) == [8]
    assert corpus.chain(places, 2, NO_STOPS)[0] == 8
    # More of what came before decides.
    assert corpus.chain(corpus.match([0, 1, 2, 3])[0], 9, NO_STOPS) == [8, 6]


def test_nothing_follows_the_end_of_a_text_or_a_stop_token() -> None:
    corpus = Corpus.of([[1, 2, 3, 4, 5], [6, 1, 2, 3, 4, 5]])
    places, _ = corpus.match([1, 2, 3])
    assert corpus.chain(places, 9, NO_STOPS) == [4, 5]
    assert corpus.chain(places, 9, frozenset({4})) == [4]
    (_, _, after) = corpus.children(places)[0]
    (_, _, end) = corpus.children(after)[0]
    assert corpus.children(end) == []
    # The end of one text and the beginning of the next are no text.
    assert corpus.match([4, 5, 6]) == ((), 0)
    assert corpus.match([3, 4, 5]) == ((), 0)


def test_tokens_that_no_text_holds_match_nothing() -> None:
    corpus = Corpus.of([[1, 2, 3, 4]])
    assert corpus.match([1, 2]) == ((), 0)
    assert corpus.match([1, 2, 9]) == ((), 0)
    assert corpus.match([2**21 - 1] * 3) == ((), 0)
    empty = Corpus.of([])
    assert (empty.num_tokens, empty.vocab_size) == (0, 0)
    assert empty.match([1, 2, 3]) == ((), 0)


def test_one_token_again_and_again_is_indexed() -> None:
    corpus = Corpus.of([[4] * 1000])
    places, length = corpus.match([4] * 200)
    assert (length, len(places) <= 2 * MOST_PLACES) == (LONGEST_MATCH, True)
    assert corpus.chain(places, 5, NO_STOPS) == [4] * 5
    assert np.array_equal(sorted_positions(with_separators([[4]])), [])
