"""Drafts from an output that the user expects, and returns to it where the text departs from it.

For edits: most of a file comes back as it was. What is emitted is followed through the prediction;
after a difference it is looked up there again, near the position where the two diverged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf, log2
from typing import Self

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Plan, Request
from forerun.drafters.base import LookupDrafter
from forerun.trees.host import Continuations, grow_on_host

# Matching tokens in a row from which on a position counts as certain.
CERTAIN = 8
# Tokens before a position that are compared.
MOST_COMPARED = 16
# Positions of the same token that are compared: after the point where the texts diverged, and before.
POSITIONS_AHEAD, POSITIONS_BEHIND = 16, 4
# A matching token is worth this many doublings of the distance, which is counted from NEAR on.
DOUBLINGS, NEAR = 2.0, 4
# Until the position is certain: tokens drafted for each matching token and for one more; without a match
# three in a hundred would be right.
TOKENS_PER_MATCHED = 2
# Positions that a tree goes on from.
MOST_BRANCHES = 3
# The share of its drafts of 16 tokens that was accepted, by the tokens in a row, where one line in ten
# of held-out Python was replaced, inserted, deleted or changed in a word.
CONFIDENCES = (0.0, 0.23, 0.43, 0.44, 0.44, 0.48, 0.6, 0.6, 0.88)


class Alignment:
    """Where an output is in its prediction.

    Args:
        prediction: token ids.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self.prediction = prediction
        self.num_followed = 0
        self.position = 0
        """The position in the prediction of the token that should come next."""
        self.matched = CERTAIN
        """Tokens before it that were emitted, the beginning of the text counting as certain."""
        self.others: list[tuple[int, float]] = []
        """Other positions that are possible, with how much lower they score."""
        self._after: dict[int, list[int]] = {}
        for position, token in enumerate(prediction, 1):
            self._after.setdefault(token, []).append(position)
        # Where the texts diverged, and how many tokens were emitted since.
        self._diverged, self._since = 0, 0

    def follow(self, token_ids: list[int], start: int) -> None:
        """Take in what has been emitted since the last call.

        Args:
            token_ids: the whole text.
            start: where its output begins.
        """
        for end in range(start + self.num_followed, len(token_ids)):
            position, token = self.position, token_ids[end]
            right = position < len(self.prediction) and self.prediction[position] == token
            self.matched = self.matched + 1 if right else 0
            self.position += 1
            self._since += 1
            self.num_followed += 1
            if self.matched < CERTAIN:
                self._look_around(token_ids, end)
            if self.matched >= CERTAIN:
                self._diverged, self._since = self.position, 0
                self.others = []

    def _look_around(self, token_ids: list[int], end: int) -> None:
        """Move to the position of the highest score, if any scores higher than this one."""
        after = self._after.get(token_ids[end], [])
        middle = bisect_left(after, self._diverged)
        lengths = {self.position: self.matched}
        for position in after[max(middle - POSITIONS_BEHIND, 0) : middle + POSITIONS_AHEAD]:
            if position != self.position:
                lengths[position] = self._compare(position, token_ids, end)
        scores = {position: self._score(position, matched) for position, matched in lengths.items()}
        # Sorting is stable: of equal positions the present one stays.
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)[:MOST_BRANCHES]
        best = self.position = ranked[0]
        self.matched = lengths[best]
        self.others = [(position, scores[best] - scores[position]) for position in ranked[1:]]

    def _compare(self, position: int, token_ids: list[int], end: int) -> int:
        """How many tokens before a position equal those up to `end`."""
        matched, prediction = 0, self.prediction
        most = min(position, self.num_followed, MOST_COMPARED)
        while matched < most and prediction[position - 1 - matched] == token_ids[end - matched]:
            matched += 1
        return matched

    def _score(self, position: int, matched: int) -> float:
        """Matching tokens, less a penalty for what a few inserted or deleted tokens do not explain."""
        if not matched:
            return -inf
        behind, ahead = self._diverged - position, position - self._diverged - self._since
        return matched - log2(1 + max(behind, ahead, 0) / NEAR) / DOUBLINGS


class PredictionDrafter(LookupDrafter):
    """Drafts the rest of the prediction that a request was given; nothing for one without.

    As a tree it goes on from several positions while it is not certain where the output is.
    """

    name = "prediction"
    reads_predictions = True

    def __init__(self) -> None:
        self._alignments: dict[int, Alignment] = {}

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:  # noqa: ARG003
        return cls()

    def confidence(self, request: Request) -> float:
        """By how many tokens in a row were as predicted."""
        alignment = self._follow(request)
        if alignment is None or alignment.position >= len(alignment.prediction):
            return 0.0
        return CONFIDENCES[min(alignment.matched, CERTAIN)]

    def release(self, request: Request) -> None:
        self._alignments.pop(request.request_id, None)

    def _follow(self, request: Request) -> Alignment | None:
        prediction = request.hints.prediction
        if not prediction:
            return None
        assert not isinstance(prediction, str), "a request has token ids"
        if request.request_id not in self._alignments:
            self._alignments[request.request_id] = Alignment(list(prediction))
        alignment = self._alignments[request.request_id]
        alignment.follow(request.token_ids, request.num_prompt_tokens)
        return alignment

    def draft(self, request: Request, plan: Plan) -> Draft:
        alignment = self._follow(request)
        if alignment is None or not alignment.matched:
            return NO_DRAFT
        if alignment.matched < CERTAIN:
            plan = plan.cut(TOKENS_PER_MATCHED * (alignment.matched + 1))
        positions = [(alignment.position, 1.0)]
        if not plan.is_chain:
            positions += [(position, 2.0**-worse) for position, worse in alignment.others]
        follow = Continuations(alignment.prediction, repeats=False)
        return grow_on_host(request, plan, (0, positions), follow.children)
