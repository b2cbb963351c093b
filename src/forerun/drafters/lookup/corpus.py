"""An index of fixed texts: the places of a growing text's longest ending in them, and the tokens after it.

A suffix array (Manber and Myers, 1993) of the texts read backwards: similar endings are adjacent,
so that one binary search finds the longest match, whatever the text was before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from struct import pack
from typing import TYPE_CHECKING

from forerun.drafters.lookup.automaton import MOST_CHILDREN

# Importing this file must not load NumPy: the command line derives flags from the drafters.
if TYPE_CHECKING:
    from numpy import int32
    from numpy.typing import NDArray

# Least tokens of a match.
SHORTEST_MATCH = 3
# Tokens of a match that count as one token of a match in the text itself, because in many texts short matches
# are chance. Among 2, 3, 4 and 6 this yields most tokens per forward for SmolLM2's answers, from 0.9 M tokens
# of other answers (2.30 without, 2.52 with 1, 2.64 with 3; 1.37, 1.42 and 1.47 at temperature 0.8), and loses
# nothing if the texts are code that no answer quotes.
TOKENS_PER_OWN = 3
# Most tokens of an ending that are compared, a power of two; longer matches are continued anyhow.
LONGEST_MATCH = 64
# Number of adjacent places that are examined on each side of a match.
MOST_PLACES = 4
# Separator before each text and after the last; no token has this number.
SEPARATOR = -1
# Bits per token if SHORTEST_MATCH tokens form one number; no vocabulary has two million tokens.
_BITS = 21
# Bytes of a token in the reversed texts, big-endian, so that tokens are in the order of their bytes.
_WIDTH = 4

Places = tuple[int, ...]
"""Positions in the texts."""
PlacesChild = tuple[int, float, Places]
"""A token, its share of the tokens that come next, and the places after it."""


class Corpus:
    """Texts to quote from, 20 bytes per token.

    Args:
        token_ids: tokens of all texts, with separators, int32 [n].
        order: positions with a token before and a token after them, sorted by the reversed text
            before them; int32 [m]. `Corpus.of` sorts them.
    """

    def __init__(self, token_ids: NDArray[int32], order: NDArray[int32]) -> None:
        import numpy as np

        self.num_tokens = int(np.count_nonzero(token_ids != SEPARATOR))
        self.vocab_size = int(token_ids.max(initial=SEPARATOR)) + 1
        assert self.vocab_size < 1 << _BITS
        self._tokens = np.ascontiguousarray(token_ids).data
        self._order = np.ascontiguousarray(order).data
        self._backwards = token_ids[::-1].astype(">u4").tobytes()
        # For each place in the order: the SHORTEST_MATCH tokens before it as one number.
        keys = np.zeros(len(order), dtype=np.int64)
        for back in range(1, SHORTEST_MATCH + 1):
            keys = keys << _BITS | token_ids[order - back] & (1 << _BITS) - 1
        self._keys = keys.data

    def __repr__(self) -> str:
        return f"Corpus({self.num_tokens} tokens)"

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]]) -> Corpus:
        """Index texts of token ids, in a second or two per million tokens."""
        token_ids = with_separators(texts)
        return cls(token_ids, sorted_positions(token_ids))

    def match(self, token_ids: Sequence[int], least: int = SHORTEST_MATCH) -> tuple[Places, int]:
        """Places after the longest ending of `token_ids` in the texts, and its length, at most LONGEST_MATCH.

        Nothing and 0 if it is shorter than `least`, which is SHORTEST_MATCH or more.
        """
        ending = token_ids[: -LONGEST_MATCH - 1 : -1]
        if len(ending) < least:
            return (), 0
        key = 0
        for token in ending[:SHORTEST_MATCH]:
            key = key << _BITS | token
        keys = self._keys
        low = bisect_left(keys, key)
        if low == len(keys) or keys[low] != key:
            return (), 0
        high = bisect_left(keys, key + 1, low)
        wanted = pack(f">{len(ending)}I", *ending)
        shortest = wanted[: _WIDTH * least]
        low = self._first(shortest, low, high)
        if low == high or self._before(low, len(shortest)) != shortest:
            return (), 0
        found = self._first(wanted, low, high)
        near = [at for at in (found - 1, found) if low <= at < high]
        length = max([_shared(self._before(at, len(wanted)), wanted) for at in near])
        return self._around(found, wanted[: _WIDTH * length], low, high), length

    def _first(self, wanted: bytes, low: int, high: int) -> int:
        """The first place in the order whose reversed text before it is not less than `wanted`."""
        backwards, size, end = self._backwards, len(wanted), len(self._backwards)

        def before(position: int) -> bytes:
            start = end - _WIDTH * position
            return backwards[start : start + size]

        return bisect_left(self._order, wanted, low, high, key=before)

    def _before(self, at: int, size: int) -> bytes:
        """The reversed text before a place in the order."""
        start = len(self._backwards) - _WIDTH * self._order[at]
        return self._backwards[start : start + size]

    def _around(self, found: int, wanted: bytes, low: int, high: int) -> Places:
        """The positions near a place in the order that follow `wanted`; all of them are adjacent."""
        first = last = found
        size = len(wanted)
        while first > max(low, found - MOST_PLACES) and self._before(first - 1, size) == wanted:
            first -= 1
        while last < min(high, found + MOST_PLACES) and self._before(last, size) == wanted:
            last += 1
        return tuple(self._order[first:last])

    def after(self, places: Places, token: int) -> Places:
        """The places at which `token` occurs and another token follows, moved on by one."""
        tokens = self._tokens
        return tuple(
            [at + 1 for at in places if tokens[at] == token and tokens[at + 1] != SEPARATOR]
        )

    def children(self, places: Places) -> list[PlacesChild]:
        """The tokens that come next, the most frequent first, the first among equals; at most MOST_CHILDREN.

        Their shares leave room for one token that has never come next.
        """
        groups: dict[int, list[int]] = {}
        for place in places:
            groups.setdefault(self._tokens[place], []).append(place + 1)
        groups.pop(SEPARATOR, None)
        ranked = sorted(groups.items(), key=lambda group: len(group[1]), reverse=True)
        total = len(places) + 1
        return [
            (token, len(after) / total, tuple(after)) for token, after in ranked[:MOST_CHILDREN]
        ]

    def chain(self, places: Places, length: int, stops: frozenset[int]) -> list[int]:
        """The first child of each place from `places` on: `length` tokens, or up to a stop token."""
        chain: list[int] = []
        while len(places) > 1 and len(chain) < length:
            children = self.children(places)
            if not children:
                return chain
            token, _, places = children[0]
            chain.append(token)
            if token in stops:
                return chain
        for token in self._tokens[places[0] : places[0] + length - len(chain)].tolist():
            if token == SEPARATOR:
                break
            chain.append(token)
            if token in stops:
                break
        return chain


class Quote:
    """The longest ending of one growing text that a corpus holds."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._places: Places = ()
        self._length = self._seen = 0

    def longest(self, token_ids: Sequence[int], above: int = 0) -> tuple[Places, int]:
        """Places after the match of the text so far, and the length that it counts as in the text itself.

        Nothing and 0 if that length is not above `above`.
        """
        # If the text continues like one of the places, its longest match is still there, because no match can
        # grow faster.
        for token in token_ids[self._seen :] if self._places else ():
            self._places = self.corpus.after(self._places, token)
            self._length = min(self._length + 1, LONGEST_MATCH)
        least = TOKENS_PER_OWN * (above + 1)
        if not self._places and self._seen < len(token_ids) and least <= LONGEST_MATCH:
            self._places, self._length = self.corpus.match(token_ids, least)
        self._seen = len(token_ids)
        return (self._places, self._length // TOKENS_PER_OWN) if self._length >= least else ((), 0)


def with_separators(texts: Iterable[Sequence[int]]) -> NDArray[int32]:
    """The tokens of all texts, a separator before each and one after the last."""
    import numpy as np

    parts = [np.array([*text, SEPARATOR], dtype=np.int32) for text in texts]
    return np.concatenate([np.array([SEPARATOR], dtype=np.int32), *parts])


def sorted_positions(token_ids: NDArray[int32]) -> NDArray[int32]:
    """Positions with a token before and after them, sorted by the LONGEST_MATCH tokens before them, reversed.

    Prefix doubling: endings of 2k tokens are in the order of pairs of endings of k tokens.
    """
    import numpy as np

    size = len(token_ids)
    ranks = token_ids.astype(np.int64)
    # Separators come last, like their bytes; 0 represents the text before the beginning.
    ranks[token_ids == SEPARATOR] = ranks.max(initial=0) + 1
    ranks += 1
    length, order = 1, np.argsort(ranks, kind="stable")
    while length < LONGEST_MATCH:
        earlier = np.zeros(size, dtype=np.int64)
        earlier[length:] = ranks[:-length]
        keys = ranks * (int(ranks.max(initial=0)) + 1) + earlier
        length *= 2
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        ranks[order] = np.cumsum(np.concatenate([[1], keys[1:] != keys[:-1]]))[:size]
    last = token_ids != SEPARATOR
    followed = np.append(last[1:], False)
    ordered: NDArray[int32] = (order[(last & followed)[order]] + 1).astype(np.int32)
    return ordered


def _shared(one: bytes, other: bytes) -> int:
    """Number of tokens that two endings have in common from their beginning on."""
    size = min(len(one), len(other))
    differ = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return (8 * size - differ.bit_length()) // (8 * _WIDTH)
