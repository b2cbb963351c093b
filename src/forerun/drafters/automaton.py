"""A suffix automaton that grows token by token: all substrings of its texts, and the tokens after them.

Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985; as an index to
draft from in Hu et al., "SAM Decoding", arXiv 2411.10666, and with counts in Oliaro et al.,
"SuffixDecoding", arXiv 2411.04975.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import nlargest

ROOT = 0
# Number of suffixes that an append counts, the longest first. A text of real words has about ten that
# occurred before. A repeated token has as many as the text is long; the counts of the shorter ones are then
# too low.
MOST_COUNTED = 16
# Most children of a state, by frequency: hundreds of words may start the next line, of which a draft needs a
# few.
MOST_CHILDREN = 8
# Number of children up to which all are sorted; of more, the most frequent are selected first.
MOST_SORTED = 32
# Number of the text's last tokens that are looked up when a match in another automaton starts again.
MOST_REMATCHED = 64

StateChild = tuple[int, float, int]
"""A token, its share of the tokens that came next, and the state that it leads to."""


class SuffixAutomaton:
    """All substrings of a few texts, with the number of times that each occurred.

    A state represents the substrings that end at the same positions; `length` is the length of the
    longest, and its suffix link leads to the longest one that ends at more positions. A state with
    one transition stores it in two arrays; only states with more have a dict, for the others.

    Args:
        token_ids: the beginning of the first text.
    """

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self.length = array("i", (0,))
        self.link = array("i", (-1,))
        self.count = array("i", (0,))
        """Number of positions where the substrings of each state end, or less; see MOST_COUNTED."""
        self.latest = array("i", (0,))
        """The last position where the substrings of each state end, or an earlier one."""
        self._token = array("i", (-1,))
        self._target = array("i", (0,))
        self._others: list[dict[int, int] | None] = [None]
        self.last = ROOT
        """The state of the whole text since its beginning."""
        self.num_tokens = 0
        self.extend(token_ids)

    def end_text(self) -> None:
        """Start another text: no substring spans two texts."""
        self.last = ROOT

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens to the text, in time proportional to their number."""
        for token in token_ids:
            self.append(token)

    def append(self, token: int) -> None:
        """Append one token, in constant time averaged over the text."""
        state = self.last
        target = self.step(state, token)
        if target:
            # Another text has continued in the same way.
            self.last = self._exact(state, token, target)
        else:
            self.last = new = self._new_state(self.length[state] + 1)
            link, tokens, step = self.link, self._token, self.step
            while state >= 0 and not target:
                others = self._others[state]
                if tokens[state] < 0:
                    tokens[state], self._target[state] = token, new
                elif others is None:
                    self._others[state] = {token: new}
                else:
                    others[token] = new
                state = link[state]
                target = step(state, token) if state >= 0 else 0
            if target:
                link[new] = self._exact(state, token, target)
        self.num_tokens += 1
        self._count()

    def step(self, state: int, token: int) -> int:
        """The state that a token leads to from a state; 0, which is never a target, if it never followed."""
        if self._token[state] == token:
            return self._target[state]
        others = self._others[state]
        return others.get(token, 0) if others else 0

    def children(self, state: int) -> list[StateChild]:
        """The tokens that came next, the most frequent first, the latest among equals; at most MOST_CHILDREN.

        Their shares leave room for one token that has never come next. At the end of a text they
        are the tokens after its longest ending that occurred before, so that a repetition is
        continued.
        """
        while self._token[state] < 0:
            state = self.link[state]
            if state <= ROOT:
                return []
        count, latest = self.count, self.latest
        token, target, others = self._token[state], self._target[state], self._others[state]
        if others is None:
            often = count[target]
            return [(token, often / (often + 1), target)]
        ranked = [(count[to], latest[to], other, to) for other, to in others.items()]
        ranked.append((count[target], latest[target], token, target))
        total = 1 + sum([often for often, _, _, _ in ranked])
        if len(ranked) > MOST_SORTED:
            ranked = nlargest(MOST_CHILDREN, ranked)
        ranked.sort(reverse=True)
        return [(token, often / total, to) for often, _, token, to in ranked[:MOST_CHILDREN]]

    def chain(self, state: int, length: int, stops: frozenset[int]) -> list[int]:
        """The first child of each state from `state` on: `length` tokens, or up to a stop token."""
        tokens, targets, others = self._token, self._target, self._others
        chain: list[int] = []
        while len(chain) < length:
            token, branches = tokens[state], others[state]
            if token < 0:
                state = self.link[state]
                if state <= ROOT:
                    break
                continue
            state = targets[state]
            if branches is not None:
                token, state = self._first(token, state, branches)
            chain.append(token)
            if token in stops:
                break
        return chain

    def _first(self, token: int, target: int, others: dict[int, int]) -> tuple[int, int]:
        """The most frequent of a token and others, the latest among equals, and its target."""
        count, latest = self.count, self.latest
        for other, to in others.items():
            more = count[to] - count[target]
            if more > 0 or (more == 0 and latest[to] > latest[target]):
                token, target = other, to
        return token, target

    def _count(self) -> None:
        count, latest, link, position = self.count, self.latest, self.link, self.num_tokens
        state, left = self.last, MOST_COUNTED
        while state and left:
            count[state] += 1
            latest[state] = position
            state = link[state]
            left -= 1

    def _exact(self, state: int, token: int, target: int) -> int:
        """The state of the longest substring of `state` extended by the token.

        It is the target, or a new state for those of the target's substrings that are not longer.
        """
        if self.length[target] == self.length[state] + 1:
            return target
        clone = self._new_state(self.length[state] + 1)
        self.link[clone] = self.link[target]
        self.count[clone] = self.count[target]
        self._token[clone] = self._token[target]
        self._target[clone] = self._target[target]
        others = self._others[target]
        self._others[clone] = others and others.copy()
        self.link[target] = clone
        while state >= 0 and self.step(state, token) == target:
            if self._token[state] == token:
                self._target[state] = clone
            else:
                self._others[state][token] = clone  # type: ignore[index]
            state = self.link[state]
        return clone

    def _new_state(self, length: int) -> int:
        self.length.append(length)
        self.link.append(ROOT)
        self.count.append(0)
        self.latest.append(0)
        self._token.append(-1)
        self._target.append(0)
        self._others.append(None)
        return len(self._others) - 1


class Match:
    """The longest ending of a growing text that an automaton of other texts holds.

    The automaton may grow meanwhile; an ending that it has learned since is matched as the text
    grows, not at once. Each token takes constant time, averaged over the text.

    Args:
        automaton: automaton of the other texts.
        token_ids: the text so far, whose last MOST_REMATCHED tokens are looked up.
    """

    def __init__(self, automaton: SuffixAutomaton, token_ids: list[int]) -> None:
        self.automaton = automaton
        self._state, self._length = ROOT, 0
        self.extend(token_ids[-MOST_REMATCHED:])

    def extend(self, token_ids: Iterable[int]) -> None:
        """Extend the text by these tokens."""
        step, link, lengths = self.automaton.step, self.automaton.link, self.automaton.length
        state, length = self.longest()
        for token in token_ids:
            target = step(state, token)
            while not target and state:
                state = link[state]
                length = lengths[state]
                target = step(state, token)
            if target:
                state, length = target, length + 1
        self._state, self._length = state, length

    def longest(self) -> tuple[int, int]:
        """The state of the match and its length in tokens; the root and 0 if there is none."""
        lengths, link = self.automaton.length, self.automaton.link
        # Its state may have been split meanwhile and now belong to longer substrings.
        while self._state and self._length <= lengths[link[self._state]]:
            self._state = link[self._state]
        return self._state, self._length
