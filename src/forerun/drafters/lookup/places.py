"""Trees of what follows several places of a text."""

from __future__ import annotations

from collections.abc import Sequence

# How probable the next token is held to be where all places agree; it sets how deep a tree goes
# before it takes in what is less probable.
AGREED = 0.9

Places = list[tuple[int, float]]
"""Where a text may go on, with weights."""
State = tuple[int, Places]
"""How many tokens a path has taken, and the places that it goes on from."""


class Continuations:
    """What follows some places of a text, merged where they agree.

    Args:
        token_ids: the text.
        repeats: whether what runs into the end of the text goes on with its own beginning: a period.
    """

    def __init__(self, token_ids: Sequence[int], repeats: bool) -> None:
        self._token_ids, self._repeats = token_ids, repeats

    def children(self, state: State) -> list[tuple[int, float, State]]:
        """The next tokens by the weight of their places; of equals the first."""
        step, places = state
        token_ids, length = self._token_ids, len(self._token_ids)
        if len(places) == 1:
            at = places[0][0]
            at += step % (length - at) if self._repeats else step
            return [(token_ids[at], AGREED, (step + 1, places))] if at < length else []
        if self._repeats:
            tokens = [token_ids[place + step % (length - place)] for place, _ in places]
        else:
            places = [weighted for weighted in places if weighted[0] + step < length]
            tokens = [token_ids[place + step] for place, _ in places]
        if tokens and tokens.count(tokens[0]) == len(tokens):
            return [(tokens[0], AGREED, (step + 1, places))]
        parted: dict[int, list[tuple[int, float]]] = {token: [] for token in tokens}
        weights = dict.fromkeys(tokens, 0.0)
        for token, weighted in zip(tokens, places, strict=True):
            parted[token].append(weighted)
            weights[token] += weighted[1]
        total = sum(weights.values()) / AGREED
        return [
            (token, weights[token] / total, (step + 1, parted[token]))
            for token in sorted(weights, key=weights.__getitem__, reverse=True)
        ]
