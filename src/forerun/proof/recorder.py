"""A rule as it is, watched: every round is tested against the laws that its own rows imply."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Sequence, Verdict
from forerun.proof.tests import SampledRows, Tests
from forerun.randomness import Randomness
from forerun.testing.laws import ends_of
from forerun.theory.goodness_of_fit import Floats, mass_before
from forerun.verification.decision import Decision, DecisionRule

Places = dict[tuple[int, int], tuple[float, float]]
"""The mass before a token and its own, in the row that verified it, by request and position."""


class Recorder:
    """Stands in for a rule, verifies with it, and feeds the tests of what is inside a round.

    Tokens of one origin do not follow the target's row: accepted ones lean to the draft, recovered
    ones away from it. They are held against the law that the rule's decision implies for this very
    draft; drafted tokens against the rows that were recorded for them.

    Args:
        rule: that verifies.
        tests: to feed.
        starts: keeps some pairs of target's and draft's rows at the start of rounds.
        places: where to note each emitted token's place in its row.
    """

    def __init__(self, rule: Verifier, tests: Tests, starts: SampledRows, places: Places) -> None:
        self.name, self.exactness = rule.name, rule.exactness
        self.rule, self.tests, self.starts, self.places = rule, tests, starts, places

    def verify(
        self, draft: Draft, target_probs: Tensor, sequence: Sequence, randomness: Randomness
    ) -> Verdict:
        verdict = self.rule.verify(draft, target_probs, sequence, randomness)
        rows = _array(target_probs)
        self._remember(rows, sequence, verdict)
        # A coupled draft shares its noise with what is emitted; it implies no law of its own.
        if len(draft) and isinstance(self.rule, DecisionRule):
            draft_rows = draft.dense_probs(rows.shape[-1])
            self._test_start(draft, rows[:1], draft_rows, verdict)
            if draft_rows is not None:
                self._test_draft(draft, _array(draft_rows))
            decision = self.rule.decide(draft, target_probs)
            self._test_decision(draft, decision, verdict)
            if self.name == "token" and draft.is_chain and draft_rows is not None and verdict.path:
                self._test_accepted(rows, _array(draft_rows), verdict)
        return verdict

    def _remember(self, rows: Floats, sequence: Sequence, verdict: Verdict) -> None:
        """Where each emitted token lies in its row, to be compared with the teacher-forced one."""
        used = rows[[0, *(node + 1 for node in verdict.path)]][: len(verdict.token_ids)]
        low, own = mass_before(used, np.array(verdict.token_ids))
        for index, place in enumerate(zip(low.tolist(), own.tolist(), strict=True)):
            self.places[sequence.request_id, len(sequence) + index] = place

    def _test_start(
        self, draft: Draft, row: Floats, draft_rows: Tensor | None, verdict: Verdict
    ) -> None:
        children = draft.children(-1)
        if draft_rows is None:
            favour = np.zeros_like(row)
            favour[0, [draft.token_ids[child] for child in children]] = 1.0
            favour /= favour.sum()
        else:
            favour = _array(draft_rows[children[0]])[None]
        ratio = np.divide(favour, row, out=np.zeros_like(row), where=row > 0)
        # What the target excludes comes last and has no mass.
        keys = np.where(row > 0, -ratio, np.inf)
        chosen = np.array(verdict.token_ids[:1])
        self.tests.place("round start, by draft", row, chosen, keys)
        self.starts.offer(row[0], favour[0])

    def _test_draft(self, draft: Draft, draft_rows: Floats) -> None:
        chosen = np.array(draft.token_ids)
        self.tests.place("drafted, by id", draft_rows, chosen)
        self.tests.place("drafted, by rank", draft_rows, chosen, -draft_rows)

    def _test_decision(self, draft: Draft, decision: Decision, verdict: Verdict) -> None:
        end = verdict.path[-1] if verdict.path else -1
        self.tests.place("path ends", ends_of(decision, len(draft))[None], np.array([end + 1]))
        law = _array(decision.emit[end + 1])[None]
        last = np.array(verdict.token_ids[-1:])
        if draft.children(end):
            self.tests.place("recovered, by id", law, last)
            self.tests.place("recovered, by rank", law, last, -law)
        else:
            self.tests.place("bonus, by rank", law, last, -law)

    def _test_accepted(self, rows: Floats, draft_rows: Floats, verdict: Verdict) -> None:
        nodes = list(verdict.path)
        least = np.minimum(rows[nodes], draft_rows[nodes])
        law = least / least.sum(1, keepdims=True)
        chosen = np.array(verdict.token_ids[: len(nodes)])
        self.tests.place("accepted, by rank", law, chosen, -law)


def places_of(places: Places, sequence: Sequence, start: int, count: int) -> Floats:
    """Those of `count` output tokens of a sequence from `start` on, [count, 2]."""
    first = sequence.num_prompt_tokens + start
    return np.array(
        [places[sequence.request_id, position] for position in range(first, first + count)]
    )


def _array(rows: Tensor) -> Floats:
    """Rows in float64 that sum to one exactly, wherever they were made."""
    wide: Floats = rows.detach().cpu().double().numpy()
    scaled: Floats = wide / wide.sum(-1, keepdims=True)
    return scaled
