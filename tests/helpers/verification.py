"""Verification of one draft, from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.contracts import Verifier
from forerun.core import Draft, Request, Verdict
from forerun.randomness import Randomness
from forerun.verification import TargetRows
from forerun.verification.decision import Decision, Pending, to_host


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
    wait = Pending.of(request, decision, torch.zeros(len(draft) + 1), randomness)
    [numbers] = to_host([wait])
    end = wait.end(numbers, randomness)
    return Verdict.of(draft, end, wait.token(numbers, end, randomness))
