"""A suffix automaton that grows token by token: every text seen, every place, and what came next.

Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985; as an index to draft
from in Hu et al., "SAM Decoding", arXiv 2411.10666, and with counts in Oliaro et al.,
"SuffixDecoding", arXiv 2411.04975.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import nlargest

ROOT = 0
# Suffixes that an append counts, the longest first. A text of real words has about ten that occurred
# before; one token repeated has as many as the text is long, and the shorter ones then count too little.
MOST_COUNTED = 16
# Children of a state at most, the most frequent ones: the first words of lines follow each other in
# hundreds of ways, of which a draft has use for a few.
MOST_CHILDREN = 8
# Tokens of the text so far that are looked up when a match in another automaton begins anew.
MOST_REMATCHED = 64

Child = tuple[int, float, int]
"""A token, its share of what came next, and the state that it leads to."""


class SuffixAutomaton:
    """All substrings of a few texts, with how often each occurred.

    A state stands for the substrings that end at the same places; `length` is that of its longest,
    and its suffix link leads to the longest one that ends at more places. A state with one transition
    has it in two arrays; only those with more have a dict, for the others.
    """

    def __init__(self) -> None:
        self.length = array("i", (0,))
        self.link = array("i", (-1,))
        self.count = array("i", (0,))
        """Places where the substrings of each state end, or fewer; see MOST_COUNTED."""
        self.latest = array("i", (0,))
        """The last of these places, or an earlier one."""
        self._token = array("i", (-1,))
        self._target = array("i", (0,))
        self._others: list[dict[int, int] | None] = [None]
        self.last = ROOT
        """The state of the whole text since its beginning."""
        self.num_tokens = 0

    def end_text(self) -> None:
        """Begin another text: no substring goes across."""
        self.last = ROOT

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens to the text, in time proportional to their number."""
        for token in token_ids:
            self.append(token)

    def append(self, token: int) -> None:
        """Append one token, in constant time when seen over the whole text."""
        last = self.last
        target = self.step(last, token)
        if target:
            # Another text has gone on like this.
            self.last = self._exact(last, token, target)
        else:
            self.last = new = self._new_state(self.length[last] + 1)
            link, tokens, others = self.link, self._token, self._others
            state = last
            while state >= 0:
                if tokens[state] == token:
                    target = self._target[state]
                    break
                if tokens[state] < 0:
                    tokens[state] = token
                    self._target[state] = new
                else:
                    more = others[state]
                    if more is None:
                        others[state] = {token: new}
                    else:
                        target = more.setdefault(token, new)
                        if target != new:
                            break
                state = link[state]
            if state >= 0:
                link[new] = self._exact(state, token, target)
        self.num_tokens += 1
        self._count()

    def step(self, state: int, token: int) -> int:
        """Where a token leads from a state; 0, which is no state's target, if it never followed."""
        if self._token[state] == token:
            return self._target[state]
        others = self._others[state]
        return others.get(token, 0) if others else 0

    def children(self, state: int) -> list[Child]:
        """What came next, the most frequent first, of equals the latest; MOST_CHILDREN at most.

        The shares leave room for one token that has never come next. At the end of a text it goes on
        after the longest ending that came before, so that what repeats itself goes on doing so.
        """
        token = self._token[state]
        while token < 0:
            state = self.link[state]
            if state <= ROOT:
                return []
            token = self._token[state]
        count, target = self.count, self._target[state]
        others = self._others[state]
        if others is None:
            often = count[target]
            return [(token, often / (often + 1), target)]
        latest = self.latest
        found = [(count[one], latest[one], name, one) for name, one in others.items()]
        found.append((count[target], latest[target], token, target))
        total = 1
        for often, *_ in found:
            total += often
        best = sorted(found, reverse=True) if len(found) <= 32 else nlargest(MOST_CHILDREN, found)
        return [(name, often / total, one) for often, _, name, one in best[:MOST_CHILDREN]]

    def chain(self, state: int, length: int, stops: frozenset[int]) -> list[int]:
        """The first of the children from `state` on: `length` tokens, or up to a stop token."""
        tokens, targets, others = self._token, self._target, self._others
        found: list[int] = []
        while len(found) < length:
            if others[state] is None:
                token = tokens[state]
                if token < 0:
                    state = self.link[state]
                    if state <= ROOT:
                        break
                    continue
                state = targets[state]
            else:
                token, state = self._first_child(state)
            found.append(token)
            if token in stops:
                break
        return found

    def _first_child(self, state: int) -> tuple[int, int]:
        count, latest = self.count, self.latest
        token, target = self._token[state], self._target[state]
        often, when = count[target], latest[target]
        others = self._others[state]
        assert others is not None
        for name, one in others.items():
            often_too = count[one]
            if often_too > often or (often_too == often and latest[one] > when):
                token, target, often, when = name, one, often_too, latest[one]
        return token, target

    def _count(self) -> None:
        count, latest, link, place = self.count, self.latest, self.link, self.num_tokens
        state, left = self.last, MOST_COUNTED
        while state and left:
            count[state] += 1
            latest[state] = place
            state = link[state]
            left -= 1

    def _exact(self, state: int, token: int, target: int) -> int:
        """The state of the longest substring of `state` and the token after it: its target, or a new
        one for the substrings of the target that are no longer."""
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

    The automaton may grow meanwhile; an ending that it has learned since is found as the text grows
    on, not at once. Each token takes constant time when seen over the whole text.

    Args:
        automaton: of the other texts.
        token_ids: the text so far, whose last MOST_REMATCHED tokens are looked up.
    """

    def __init__(self, automaton: SuffixAutomaton, token_ids: list[int]) -> None:
        self.automaton = automaton
        self._state, self._length = ROOT, 0
        self.extend(token_ids[-MOST_REMATCHED:])

    def extend(self, token_ids: Iterable[int]) -> None:
        """Follow the text by these tokens."""
        step, link, lengths = self.automaton.step, self.automaton.link, self.automaton.length
        state, length = self.found()
        for token in token_ids:
            target = step(state, token)
            while not target and state:
                state = link[state]
                length = lengths[state]
                target = step(state, token)
            if target:
                state, length = target, length + 1
        self._state, self._length = state, length

    def found(self) -> tuple[int, int]:
        """The state of the match and its length in tokens; the root and 0 where there is none."""
        lengths, link = self.automaton.length, self.automaton.link
        # Since it was found, its state may have been left to longer substrings.
        while self._state and self._length <= lengths[link[self._state]]:
            self._state = link[self._state]
        return self._state, self._length
