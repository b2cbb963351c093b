"""Training losses, in nats per token or in rejected tokens of a draft."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# Rows over the vocabulary that are computed at once: as many as fit into a cache.
CHUNK = 256
# Minimum number of columns for which compiling, which takes some seconds, pays.
LEAST_COLUMNS = 1024
# Rows in the estimate of a batch's acceptance before its loss is computed.
SAMPLED = 256


def rejection_loss(
    states: Tensor,
    matrix: Tensor,
    target_probs: Tensor,
    index: Tensor,
    weights: Tensor,
    kl_share: float,
) -> tuple[Tensor, Tensor]:
    """Weighted sum of rejection probabilities of drafted tokens, mixed with a share of KL.

    The draft's logits are `states @ matrix.T`. They and their gradient are computed chunk by chunk and never
    held for all rows, so memory does not grow with the vocabulary.

    Args:
        states, matrix: states [N, h] and matrix [V, h].
        target_probs: rows of the target's probabilities over the draft's vocabulary, [R, V]; probability
            outside the vocabulary is missing from their sums.
        index: index of the row of `target_probs` for each state, [N].
        weights: weight of each state in the sum, [N].
        kl_share: share of KL(target || draft) in the loss, in [0, 1]. The rest is 1 - Σ min(target, draft),
            the exact probability of a rejection, whose gradient vanishes if the two hardly overlap.

    Returns:
        The weighted sum, and the acceptance probabilities Σ min(target, draft) [N], without gradient.
    """
    total, accepted = _RejectionLoss.apply(states, matrix, target_probs, index, weights, kl_share)  # type: ignore[no-untyped-call]
    return total, accepted


@torch.no_grad()
def kl_share(states: Tensor, matrix: Tensor, target_probs: Tensor, index: Tensor) -> float:
    """Share of KL in the loss of a batch, exp(-3 α), with the acceptance α estimated from some rows.

    The share is larger, the lower the acceptance (as in the speculators library's lk_hybrid).
    """
    if not len(index):
        return 1.0
    few = slice(None, None, max(1, len(index) // SAMPLED))
    rows = index[few]
    ones = torch.ones_like(rows, dtype=torch.float)
    _, accepted = rejection_loss(states[few], matrix, target_probs, rows, ones, 0.0)
    return math.exp(-3 * float(accepted.mean()))


class _RejectionLoss(torch.autograd.Function):
    """Autograd function of `rejection_loss` that computes gradients with the loss, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        matrix: Tensor,
        target_probs: Tensor,
        index: Tensor,
        weights: Tensor,
        kl_share: float,
    ) -> tuple[Tensor, Tensor]:
        of_states = torch.zeros_like(states) if ctx.needs_input_grad[0] else None
        of_matrix = (
            torch.zeros_like(matrix, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        )
        rows, device = compiled(_rows, len(matrix)), index.device
        share = torch.tensor(float(kl_share), device=device)
        accepted = torch.empty(len(index), device=device)
        total = torch.zeros((), device=device)
        for start in range(0, len(index), CHUNK):
            part = slice(start, start + CHUNK)
            logits = states[part] @ matrix.T
            count = len(logits)
            made = filled(CHUNK, logits, target_probs[index[part]], weights[part])
            gradient, overlap, losses = rows(made[0], made[1], made[2], share)
            accepted[part] = overlap[:count]
            total += losses[:count].sum()
            if of_states is not None:
                of_states[part] = gradient[:count] @ matrix
            if of_matrix is not None:
                of_matrix += gradient[:count].T @ states[part]
        ctx.grads = of_states, of_matrix
        ctx.mark_non_differentiable(accepted)
        return total, accepted

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if grad is None else upstream * grad for grad in ctx.grads)
        return *scaled, None, None, None, None


def _rows(
    logits: Tensor, target: Tensor, weights: Tensor, kl_share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted gradient of the logits, Σ min(p, q), and weighted loss, for each row.

    The gradient of Σ min(p, q) by q is 1 where q < p and 0 elsewhere. Through the softmax, a gradient g
    becomes q (g - Σ q g). The gradient of KL by the logits is q Σ p - p.
    """
    logs = logits.float().log_softmax(-1)
    draft, p = logs.exp(), target.float()
    accepted = torch.minimum(p, draft).sum(-1)
    over = (draft >= p).float()
    rejected = draft * (over - (draft * over).sum(-1, keepdim=True))
    divergent = draft * p.sum(-1, keepdim=True) - p
    gradient = ((1 - kl_share) * rejected + kl_share * divergent) * weights[:, None]
    kl = (torch.special.xlogy(p, p) - p * logs).sum(-1)
    losses = ((1 - kl_share) * (1 - accepted) + kl_share * kl) * weights
    return gradient.to(logits.dtype), accepted, losses


def compiled(function: Callable[P, R], columns: int) -> Callable[P, R]:
    """A function for tensors of one fixed shape, compiled by torch at its first call.

    With few columns, and where compiling fails (as without a C++ compiler), the function is used
    uncompiled. Over rows of a vocabulary, a compiled function is ten times as fast.
    """
    return function if columns < LEAST_COLUMNS else _compiled(function)


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    chosen: list[Callable[P, R]] = [torch.compile(function, dynamic=False)]

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return chosen[0](*args, **kwargs)
        except Exception as error:
            if chosen[0] is function:
                raise
            logger.info("%s is not compiled: %s", function.__name__, error)
            chosen[0] = function
            return function(*args, **kwargs)

    return run


def filled(size: int, *tensors: Tensor) -> list[Tensor]:
    """Tensors padded to `size` rows by repeating the last row, so that compiled code sees one shape."""
    count, device = len(tensors[0]), tensors[0].device
    if count == size:
        return list(tensors)
    rows = torch.arange(size, device=device).clamp(max=count - 1)
    return [tensor[rows] for tensor in tensors]
