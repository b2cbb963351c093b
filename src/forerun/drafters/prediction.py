"""Drafts from an output that the user expects, and finds back to it where the text goes its own way.

For edits: most of a file comes back as it was. What is emitted is followed through the prediction;
after a difference it is looked up there again, near the place where the two parted.
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

# Tokens in a row that show that a place is the right one.
CERTAIN = 8
# How far back a place is compared.
MOST_COMPARED = 16
# Places compared where a token is found again: so many from where the texts parted on, some before.
PLACES_AHEAD, PLACES_BEHIND = 16, 4
# One token of match is worth this many doublings of the distance, which is counted from NEAR on.
DOUBLINGS, NEAR = 2.0, 4
# Until the place is certain: tokens drafted for each token of match and for one more; without a match
# three in a hundred would be right.
TOKENS_PER_MATCHED = 2
# Places that a tree goes on from.
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
        self.place = 0
        """The place in the prediction of the token that should come next."""
        self.matched = CERTAIN
        """Tokens before it that were emitted, the beginning of the text counting as certain."""
        self.others: list[tuple[int, float]] = []
        """Other places that it may be, with how much worse they are."""
        self._after: dict[int, list[int]] = {}
        for place, token in enumerate(prediction, 1):
            self._after.setdefault(token, []).append(place)
        # Where the texts parted, and how many tokens were emitted since.
        self._parted, self._since = 0, 0

    def follow(self, token_ids: list[int], start: int) -> None:
        """Take in what has been emitted since the last call.

        Args:
            token_ids: the whole text.
            start: where its output begins.
        """
        for end in range(start + self.num_followed, len(token_ids)):
            place, token = self.place, token_ids[end]
            right = place < len(self.prediction) and self.prediction[place] == token
            self.matched = self.matched + 1 if right else 0
            self.place += 1
            self._since += 1
            self.num_followed += 1
            if self.matched < CERTAIN:
                self._look_around(token_ids, end)
            if self.matched >= CERTAIN:
                self._parted, self._since = self.place, 0
                self.others = []

    def _look_around(self, token_ids: list[int], end: int) -> None:
        """Move to the place that speaks most for itself, if any speaks more than this one."""
        after = self._after.get(token_ids[end], [])
        middle = bisect_left(after, self._parted)
        lengths = {self.place: self.matched}
        for place in after[max(middle - PLACES_BEHIND, 0) : middle + PLACES_AHEAD]:
            if place != self.place:
                lengths[place] = self._compare(place, token_ids, end)
        scores = {place: self._score(place, matched) for place, matched in lengths.items()}
        # Sorting is stable: where nothing is better, it stays.
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)[:MOST_BRANCHES]
        best = self.place = ranked[0]
        self.matched = lengths[best]
        self.others = [(place, scores[best] - scores[place]) for place in ranked[1:]]

    def _compare(self, place: int, token_ids: list[int], end: int) -> int:
        """How many tokens before a place are those up to `end`."""
        matched, prediction = 0, self.prediction
        most = min(place, self.num_followed, MOST_COMPARED)
        while matched < most and prediction[place - 1 - matched] == token_ids[end - matched]:
            matched += 1
        return matched

    def _score(self, place: int, matched: int) -> float:
        """Tokens of match, less where a few tokens more or fewer do not explain the place."""
        if not matched:
            return -inf
        behind, ahead = self._parted - place, place - self._parted - self._since
        return matched - log2(1 + max(behind, ahead, 0) / NEAR) / DOUBLINGS


class PredictionDrafter(LookupDrafter):
    """Drafts the rest of the prediction that a request was given; nothing for one without.

    As a tree it goes on from several places while it is not certain where the output is.
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
        if alignment is None or alignment.place >= len(alignment.prediction):
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
        places = [(alignment.place, 1.0)]
        if not plan.is_chain:
            places += [(place, 2.0**-worse) for place, worse in alignment.others]
        follow = Continuations(alignment.prediction, repeats=False)
        return grow_on_host(request, plan, (0, places), follow.children)
