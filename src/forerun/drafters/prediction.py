"""Drafts from an expected output, and returns to it after the text has departed from it.

For edits: most of a file comes back unchanged. The emitted text is followed through the prediction;
after a difference it is searched for there again, near the position where the two diverged.
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

# Number of matching tokens in a row from which on a position counts as certain.
CERTAIN = 8
# Number of tokens before a position that are compared.
MOST_COMPARED = 16
# Number of positions of the same token that are compared: after the point of divergence, and before it.
POSITIONS_AHEAD, POSITIONS_BEHIND = 16, 4
# A matching token is worth this many doublings of the distance, which is counted from NEAR on.
DOUBLINGS, NEAR = 2.0, 4
# Tokens drafted, until the position is certain, for each matching token and one more; without a match three
# in a hundred would be right.
TOKENS_PER_MATCHED = 2
# Most positions that a tree continues from.
MOST_BRANCHES = 3
# Share of drafts of 16 tokens that was accepted, by the number of matching tokens in a row, for held-out
# Python in which one line in ten was replaced, inserted, deleted or changed in a word.
CONFIDENCES = (0.0, 0.23, 0.43, 0.44, 0.44, 0.48, 0.6, 0.6, 0.88)


class Alignment:
    """Position of an output in its prediction.

    Args:
        prediction: token ids.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self.prediction = prediction
        self.num_followed = 0
        self.position = 0
        """Position in the prediction of the token that should come next."""
        self.matched = CERTAIN
        """Number of emitted tokens before the position; the beginning of the text counts as certain."""
        self.others: list[tuple[int, float]] = []
        """Other possible positions, with the amount by which their scores are lower."""
        self._after: dict[int, list[int]] = {}
        for position, token in enumerate(prediction, 1):
            self._after.setdefault(token, []).append(position)
        # Position of the divergence, and number of tokens emitted since.
        self._diverged, self._since = 0, 0

    def follow(self, token_ids: list[int], start: int) -> None:
        """Take in the tokens emitted since the last call.

        Args:
            token_ids: the whole text.
            start: index of the first output token.
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
        """Move to the position of the highest score, if any scores higher than the present one."""
        after = self._after.get(token_ids[end], [])
        middle = bisect_left(after, self._diverged)
        lengths = {self.position: self.matched}
        for position in after[max(middle - POSITIONS_BEHIND, 0) : middle + POSITIONS_AHEAD]:
            if position != self.position:
                lengths[position] = self._compare(position, token_ids, end)
        scores = {position: self._score(position, matched) for position, matched in lengths.items()}
        # Sorting is stable: among equal positions the present one stays.
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)[:MOST_BRANCHES]
        best = self.position = ranked[0]
        self.matched = lengths[best]
        self.others = [(position, scores[best] - scores[position]) for position in ranked[1:]]

    def _compare(self, position: int, token_ids: list[int], end: int) -> int:
        """Number of tokens before a position that equal those up to `end`."""
        matched, prediction = 0, self.prediction
        most = min(position, self.num_followed, MOST_COMPARED)
        while matched < most and prediction[position - 1 - matched] == token_ids[end - matched]:
            matched += 1
        return matched

    def _score(self, position: int, matched: int) -> float:
        """Number of matching tokens, less a penalty for an unexplained distance.

        A few inserted or deleted tokens explain a small distance.
        """
        if not matched:
            return -inf
        behind, ahead = self._diverged - position, position - self._diverged - self._since
        return matched - log2(1 + max(behind, ahead, 0) / NEAR) / DOUBLINGS


class PredictionDrafter(LookupDrafter):
    """Drafts the rest of the prediction that a request was given; nothing for one without.

    Trees continue from several positions while the position of the output is not certain.
    """

    name = "prediction"
    reads_predictions = True

    def __init__(self) -> None:
        self._alignments: dict[int, Alignment] = {}

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:  # noqa: ARG003
        return cls()

    def confidence(self, request: Request) -> float:
        """Confidence by the number of predicted tokens in a row."""
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
