"""Verification of one draft, from logits."""

from __future__ import annotations

from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Request, Verdict
from forerun.randomness import Randomness
from forerun.verification import TargetRows, verify_one
from forerun.verification.decision import Decision, DecisionRule


def warp_draft(logits: Tensor, request: Request, draft: Draft) -> Tensor:
    """The rows of a draft as its request draws from them, [n + 1, V]."""
    return TargetRows(logits[None], [draft], [request]).probs(0)


def verify_logits(
    rule: Verifier,
    draft: Draft,
    logits: Tensor,
    request: Request,
    randomness: Randomness | None = None,
) -> Verdict:
    """The verdict on one draft, whose rows of logits are [n + 1, V]."""
    rows = TargetRows(logits[None], [draft], [request])
    return rule.verify([draft], rows, [request], randomness or Randomness())[0]


def walk(draft: Draft, decision: Decision, request: Request, randomness: Randomness) -> Verdict:
    """Follow a decision, step by step."""

    class Decided(DecisionRule):
        def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
            return decision

    return verify_one(Decided(), draft, decision.emit, request, randomness)
