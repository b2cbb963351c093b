"""Tests of every round against the distributions that its rows and its rule imply."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from forerun.core import Draft, Request, Verdict
from forerun.measure.watching import VerifiedDraft
from forerun.proof.score_tests import SampledRows, ScoreTests
from forerun.testing.enumeration import ends_of
from forerun.theory.goodness_of_fit import mass_before, ratios_of
from forerun.theory.inputs import Floats
from forerun.verification.decision import Decision, DecisionRule

# Rules for which the probability of accepting each continuation is known in closed form.
_KEEPS = ("token", "block")

Masses = dict[tuple[int, int], tuple[float, float]]
"""Probability before a token and its own, in the row that verified it, by request and position."""


class RoundTests:
    """Tests of the tokens of every round, beside what the rule's decision implies.

    Tokens of one origin do not follow the target's row: accepted tokens lean towards the draft,
    recovered tokens away from it. They are tested against the distribution that the rule's decision
    implies for their draft. Drafted tokens are tested against the rows recorded for them.

    Args:
        tests: score tests to which outcomes are added.
        starts: sample of the rows of target and draft at the start of rounds, filled here.

    Attributes:
        masses: of the emitted tokens.
        used: names of the rules that verified drafts.
    """

    def __init__(self, tests: ScoreTests, starts: SampledRows) -> None:
        self.tests, self.starts = tests, starts
        self.masses: Masses = {}
        self.used: set[str] = set()
        self._latest: dict[tuple[str, str, int], Floats] = {}

    def see(self, verified: VerifiedDraft) -> Verdict:
        """Test a verified draft; its verdict stays."""
        draft, request, verdict = verified.draft, verified.request, verified.verdict
        rows = _array(verified.target_probs)
        self._remember(rows, request, verdict)
        if len(draft):
            self.used.add(verified.rule.name)
        # A coupled draft shares its noise with the emitted tokens, so it implies no distribution.
        if len(draft) and isinstance(verified.rule, DecisionRule):
            draft_rows = draft.dense_probs(rows.shape[-1])
            self._test_start(draft, rows[:1], draft_rows, verdict)
            if draft_rows is not None:
                self._test_draft(verified, _array(draft_rows))
            self._test_decision(verified, verified.rule.decide(draft, verified.target_probs))
            if (
                verified.rule.name in _KEEPS
                and draft.tree.is_chain
                and draft_rows is not None
                and verdict.path
            ):
                self._test_accepted(verified.rule.name, rows, _array(draft_rows), verdict)
        return verdict

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
        ratios = ratios_of(row, favour)
        # Tokens that the target excludes come last; their probability is zero.
        keys = np.where(row > 0, -ratios, np.inf)
        chosen = np.array(verdict.token_ids[:1])
        self.tests.add("round start, by draft", row, chosen, keys)
        self.tests.add_ratios("round start, towards the draft", row, ratios, chosen)
        self.starts.offer(row[0], favour[0])

    def _test_draft(self, verified: VerifiedDraft, draft_rows: Floats) -> None:
        chosen = np.array(verified.draft.token_ids)
        transforms = self.tests.add("drafted, by id", draft_rows, chosen)
        self.tests.add("drafted, by rank", draft_rows, chosen, -draft_rows)
        parents = np.array(verified.draft.tree.parents)
        inner = np.flatnonzero(parents >= 0)
        self.tests.add_pairs("drafted, consecutive", transforms[parents[inner]], transforms[inner])
        self._test_round_by_round("drafted, round by round", transforms[:1], verified)

    def _test_round_by_round(self, name: str, transform: Floats, verified: VerifiedDraft) -> None:
        """Test a transform of this round for independence from the previous round's, by request and rule."""
        key = (verified.rule.name, name, verified.request.request_id)
        if key in self._latest:
            self.tests.add_pairs(name, self._latest[key], transform)
        self._latest[key] = transform

    def _test_decision(self, verified: VerifiedDraft, decision: Decision) -> None:
        draft, verdict = verified.draft, verified.verdict
        end = verdict.path[-1] if verdict.path else -1
        ends = ends_of(decision, len(draft))[None]
        transform = self.tests.add("path ends", ends, np.array([end + 1]))
        self._test_round_by_round("path ends, round by round", transform, verified)
        row = _array(decision.emit[end + 1])[None]
        last = np.array(verdict.token_ids[-1:])
        if draft.tree.children(end):
            self.tests.add("recovered, by id", row, last)
            self.tests.add("recovered, by rank", row, last, -row)
        else:
            self.tests.add("bonus, by rank", row, last, -row)

    def _test_accepted(self, rule: str, rows: Floats, draft_rows: Floats, verdict: Verdict) -> None:
        """Test accepted tokens against the distribution min(q, w p), normalized.

        w is 1 under `token`, and the weight of the prefix under `block`.
        """
        nodes = list(verdict.path)
        chosen = np.array(verdict.token_ids[: len(nodes)])
        p, q = rows[nodes], draft_rows[nodes]
        weights = np.ones(len(nodes))
        if rule == "block":
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
    wide: Floats = rows.detach().cpu().to(torch.float64, copy=True).numpy()
    wide /= wide.sum(-1, keepdims=True)
    return wide
