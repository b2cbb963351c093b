"""A rule as it is, watched: every round is tested against the laws that its own rows imply."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Sequence, Verdict
from forerun.proof.battery import Battery, SampledRows
from forerun.randomness import Randomness
from forerun.testing.laws import ends_of
from forerun.theory.goodness_of_fit import Floats, mass_before
from forerun.verification.decision import Decision, DecisionRule

# Rules whose share of each continuation is known in closed form.
_KEEPS = ("token", "block")

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
        used: where to note the rule's name when it verifies.
    """

    def __init__(
        self, rule: Verifier, tests: Battery, starts: SampledRows, places: Places, used: set[str]
    ) -> None:
        self.name, self.exactness = rule.name, rule.exactness
        self.rule, self.tests, self.starts = rule, tests, starts
        self.places, self.used = places, used
        self._latest: dict[tuple[str, int], Floats] = {}

    def verify(
        self, draft: Draft, target_probs: Tensor, sequence: Sequence, randomness: Randomness
    ) -> Verdict:
        verdict = self.rule.verify(draft, target_probs, sequence, randomness)
        rows = _array(target_probs)
        self._remember(rows, sequence, verdict)
        if len(draft):
            self.used.add(self.name)
        # A coupled draft shares its noise with what is emitted; it implies no law of its own.
        if len(draft) and isinstance(self.rule, DecisionRule):
            draft_rows = draft.dense_probs(rows.shape[-1])
            self._test_start(draft, rows[:1], draft_rows, verdict)
            if draft_rows is not None:
                self._test_draft(draft, _array(draft_rows), sequence)
            decision = self.rule.decide(draft, target_probs)
            self._test_decision(draft, decision, verdict, sequence)
            if self.name in _KEEPS and draft.is_chain and draft_rows is not None and verdict.path:
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

    def _test_draft(self, draft: Draft, draft_rows: Floats, sequence: Sequence) -> None:
        chosen = np.array(draft.token_ids)
        places = self.tests.place("drafted, by id", draft_rows, chosen)
        self.tests.place("drafted, by rank", draft_rows, chosen, -draft_rows)
        parents = np.array(draft.parents)
        inner = np.flatnonzero(parents >= 0)
        self.tests.pairs("drafted, consecutive", places[parents[inner]], places[inner])
        self._test_round_by_round("drafted, round by round", places[:1], sequence)

    def _test_round_by_round(self, name: str, place: Floats, sequence: Sequence) -> None:
        """Pair what this round shows with what the round before it has shown of the same text."""
        key = (name, sequence.request_id)
        if key in self._latest:
            self.tests.pairs(name, self._latest[key], place)
        self._latest[key] = place

    def _test_decision(
        self, draft: Draft, decision: Decision, verdict: Verdict, sequence: Sequence
    ) -> None:
        end = verdict.path[-1] if verdict.path else -1
        ends = ends_of(decision, len(draft))[None]
        place = self.tests.place("path ends", ends, np.array([end + 1]))
        self._test_round_by_round("path ends, round by round", place, sequence)
        law = _array(decision.emit[end + 1])[None]
        last = np.array(verdict.token_ids[-1:])
        if draft.children(end):
            self.tests.place("recovered, by id", law, last)
            self.tests.place("recovered, by rank", law, last, -law)
        else:
            self.tests.place("bonus, by rank", law, last, -law)

    def _test_accepted(self, rows: Floats, draft_rows: Floats, verdict: Verdict) -> None:
        """Of the arrivals at a prefix the rule keeps min(q, w p) of each continuation, w being 1
        under token and block verification's weight of the prefix under block."""
        nodes = list(verdict.path)
        chosen = np.array(verdict.token_ids[: len(nodes)])
        p, q = rows[nodes], draft_rows[nodes]
        weights = np.ones(len(nodes))
        if self.name == "block":
            for node in nodes[:-1]:
                ratio = p[node, chosen[node]] / q[node, chosen[node]]
                weights[node + 1] = min(1.0, weights[node] * ratio)
        kept = np.minimum(weights[:, None] * p, q)
        law = kept / kept.sum(1, keepdims=True)
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
