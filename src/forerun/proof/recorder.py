"""Observes a rule, and tests every round against the distributions that its rows imply."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Request, Verdict
from forerun.proof.score_tests import SampledRows, ScoreTests
from forerun.randomness import Randomness
from forerun.testing.enumeration import ends_of
from forerun.theory.goodness_of_fit import mass_before
from forerun.theory.inputs import Floats
from forerun.verification import TargetRows
from forerun.verification.decision import Decision, DecisionRule

# Rules for which the probability of accepting each continuation is known in closed form.
_KEEPS = ("token", "block")

Masses = dict[tuple[int, int], tuple[float, float]]
"""Probability before a token and its own, in the row that verified it, by request and position."""


class Recorder:
    """A verifier that delegates to a rule and tests the tokens of every round.

    Tokens of one origin do not follow the target's row: accepted tokens lean towards the draft,
    recovered tokens away from it. They are tested against the distribution that the rule's decision
    implies for their draft. Drafted tokens are tested against the rows recorded for them.

    Args:
        rule: rule that verifies.
        tests: score tests to which outcomes are added.
        starts: sample of the rows of target and draft at the start of rounds, filled here.
        masses: filled with the masses of emitted tokens.
        used: filled with the names of rules that verify drafts.
    """

    def __init__(
        self, rule: Verifier, tests: ScoreTests, starts: SampledRows, masses: Masses, used: set[str]
    ) -> None:
        self.name, self.exactness = rule.name, rule.exactness
        self.rule, self.tests, self.starts = rule, tests, starts
        self.masses, self.used = masses, used
        self._latest: dict[tuple[str, int], Floats] = {}

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        verdicts = self.rule.verify(drafts, rows, requests, randomness)
        for index, (draft, request, verdict) in enumerate(
            zip(drafts, requests, verdicts, strict=True)
        ):
            self._watch(draft, rows.probs(index), request, verdict)
        return verdicts

    def _watch(
        self, draft: Draft, target_probs: Tensor, request: Request, verdict: Verdict
    ) -> None:
        rows = _array(target_probs)
        self._remember(rows, request, verdict)
        if len(draft):
            self.used.add(self.name)
        # A coupled draft shares its noise with the emitted tokens, so it implies no distribution.
        if len(draft) and isinstance(self.rule, DecisionRule):
            draft_rows = draft.dense_probs(rows.shape[-1])
            self._test_start(draft, rows[:1], draft_rows, verdict)
            if draft_rows is not None:
                self._test_draft(draft, _array(draft_rows), request)
            decision = self.rule.decide(draft, target_probs)
            self._test_decision(draft, decision, verdict, request)
            if (
                self.name in _KEEPS
                and draft.tree.is_chain
                and draft_rows is not None
                and verdict.path
            ):
                self._test_accepted(rows, _array(draft_rows), verdict)

    def _remember(self, rows: Floats, request: Request, verdict: Verdict) -> None:
        """Record the masses of the emitted tokens, to compare with teacher-forced rows later."""
        used = rows[[0, *(node + 1 for node in verdict.path)]][: len(verdict.token_ids)]
        low, own = mass_before(used, np.array(verdict.token_ids))
        for index, masses in enumerate(zip(low.tolist(), own.tolist(), strict=True)):
            self.masses[request.request_id, len(request) + index] = masses

    def _test_start(
        self, draft: Draft, row: Floats, draft_rows: Tensor | None, verdict: Verdict
    ) -> None:
        children = draft.tree.children(-1)
        if draft_rows is None:
            favour = np.zeros_like(row)
            favour[0, [draft.token_ids[child] for child in children]] = 1.0
            favour /= favour.sum()
        else:
            favour = _array(draft_rows[children[0]])[None]
        ratio = np.divide(favour, row, out=np.zeros_like(row), where=row > 0)
        # Tokens that the target excludes come last; their probability is zero.
        keys = np.where(row > 0, -ratio, np.inf)
        chosen = np.array(verdict.token_ids[:1])
        self.tests.add("round start, by draft", row, chosen, keys)
        self.starts.offer(row[0], favour[0])

    def _test_draft(self, draft: Draft, draft_rows: Floats, request: Request) -> None:
        chosen = np.array(draft.token_ids)
        transforms = self.tests.add("drafted, by id", draft_rows, chosen)
        self.tests.add("drafted, by rank", draft_rows, chosen, -draft_rows)
        parents = np.array(draft.tree.parents)
        inner = np.flatnonzero(parents >= 0)
        self.tests.add_pairs("drafted, consecutive", transforms[parents[inner]], transforms[inner])
        self._test_round_by_round("drafted, round by round", transforms[:1], request)

    def _test_round_by_round(self, name: str, transform: Floats, request: Request) -> None:
        """Test a transform of this round for independence from the previous round's, by request."""
        key = (name, request.request_id)
        if key in self._latest:
            self.tests.add_pairs(name, self._latest[key], transform)
        self._latest[key] = transform

    def _test_decision(
        self, draft: Draft, decision: Decision, verdict: Verdict, request: Request
    ) -> None:
        end = verdict.path[-1] if verdict.path else -1
        ends = ends_of(decision, len(draft))[None]
        transform = self.tests.add("path ends", ends, np.array([end + 1]))
        self._test_round_by_round("path ends, round by round", transform, request)
        row = _array(decision.emit[end + 1])[None]
        last = np.array(verdict.token_ids[-1:])
        if draft.tree.children(end):
            self.tests.add("recovered, by id", row, last)
            self.tests.add("recovered, by rank", row, last, -row)
        else:
            self.tests.add("bonus, by rank", row, last, -row)

    def _test_accepted(self, rows: Floats, draft_rows: Floats, verdict: Verdict) -> None:
        """Test accepted tokens against the distribution min(q, w p), normalized.

        w is 1 under `token`, and the weight of the prefix under `block`.
        """
        nodes = list(verdict.path)
        chosen = np.array(verdict.token_ids[: len(nodes)])
        p, q = rows[nodes], draft_rows[nodes]
        weights = np.ones(len(nodes))
        if self.name == "block":
            for node in nodes[:-1]:
                ratio = p[node, chosen[node]] / q[node, chosen[node]]
                weights[node + 1] = min(1.0, weights[node] * ratio)
        accepted = np.minimum(weights[:, None] * p, q)
        accepted /= accepted.sum(1, keepdims=True)
        self.tests.add("accepted, by rank", accepted, chosen, -accepted)


def masses_of(masses: Masses, request: Request, start: int, count: int) -> Floats:
    """Masses of `count` output tokens of a request, starting with token `start`, [count, 2]."""
    first = request.num_prompt_tokens + start
    return np.array(
        [masses[request.request_id, position] for position in range(first, first + count)]
    )


def _array(rows: Tensor) -> Floats:
    """Rows as float64, scaled to a sum of 1."""
    wide: Floats = rows.detach().cpu().double().numpy()
    scaled: Floats = wide / wide.sum(-1, keepdims=True)
    return scaled
