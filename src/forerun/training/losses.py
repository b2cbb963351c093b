"""Training losses, in nats per token or in rejected tokens of a draft."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
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
    factors: Sequence[tuple[Tensor, Tensor]],
    target_probs: Tensor,
    index: Tensor,
    weights: Tensor,
    kl_share: float,
) -> tuple[Tensor, Tensor]:
    """Weighted sum of rejection probabilities of drafted tokens, mixed with a share of KL.

    The draft's logits are the sum of `states @ matrix.T` over the factors. Logits and their gradient are
    computed chunk by chunk and never held for all rows, so memory does not grow with the vocabulary.

    Args:
        factors: pairs of states [N, h] and matrix [V, h], at least one.
        target_probs: rows of the target's probabilities over the draft's vocabulary, [R, V]; probability
            outside the vocabulary is missing from their sums.
        index: index of the row of `target_probs` for each state, [N].
        weights: weight of each state in the sum, [N].
        kl_share: share of KL(target || draft) in the loss, in [0, 1]. The rest is 1 - Σ min(target, draft),
            the exact probability of a rejection, whose gradient vanishes if the two hardly overlap.

    Returns:
        The weighted sum, and the acceptance probabilities Σ min(target, draft) [N], without gradient.
    """
    flat = [tensor for pair in factors for tensor in pair]
    total, accepted = _RejectionLoss.apply(target_probs, index, weights, kl_share, *flat)  # type: ignore[no-untyped-call]
    return total, accepted


@torch.no_grad()
def kl_share(
    factors: Sequence[tuple[Tensor, Tensor]], target_probs: Tensor, index: Tensor
) -> float:
    """Share of KL in the loss of a batch, exp(-3 α), with the acceptance α estimated from some rows.

    The share is larger, the lower the acceptance (as in the speculators library's lk_hybrid).
    """
    if not len(index):
        return 1.0
    few = slice(None, None, max(1, len(index) // SAMPLED))
    thinned = [(states[few], matrix) for states, matrix in factors]
    rows = index[few]
    _, accepted = rejection_loss(
        thinned, target_probs, rows, torch.ones_like(rows, dtype=torch.float), 0.0
    )
    return math.exp(-3 * float(accepted.mean()))


class _RejectionLoss(torch.autograd.Function):
    """Autograd function of `rejection_loss` that computes gradients with the loss, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        target_probs: Tensor,
        index: Tensor,
        weights: Tensor,
        kl_share: float,
        *flat: Tensor,
    ) -> tuple[Tensor, Tensor]:
        needed = ctx.needs_input_grad[4:]
        grads = [
            torch.zeros_like(tensor, dtype=torch.float32 if place % 2 else tensor.dtype)
            if wanted
            else None
            for place, (tensor, wanted) in enumerate(zip(flat, needed, strict=True))
        ]
        rows = compiled(_rows, len(flat[1]))
        device = index.device
        share = torch.tensor(float(kl_share), device=device)
        accepted = torch.empty(len(index), device=device)
        total = torch.zeros((), device=device)
        for start in range(0, len(index), CHUNK):
            part = slice(start, start + CHUNK)
            states, matrices = [tensor[part] for tensor in flat[::2]], flat[1::2]
            logits = [state @ matrix.T for state, matrix in zip(states, matrices, strict=True)]
            count = len(logits[0])
            target, weight = filled(CHUNK, target_probs[index[part]], weights[part])
            gradient, overlap, losses = rows(filled(CHUNK, *logits), target, weight, share)
            accepted[part] = overlap[:count]
            total += losses[:count].sum()
            if any(needed):
                _add_gradients(grads, part, gradient[:count], states, matrices)
        ctx.grads = grads
        ctx.mark_non_differentiable(accepted)
        return total, accepted

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if grad is None else upstream * grad for grad in ctx.grads)
        return None, None, None, None, *scaled


def _add_gradients(
    grads: Sequence[Tensor | None],
    part: slice,
    gradient: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
) -> None:
    """Add the gradients of states and matrices, two per factor, from a chunk's gradient of the logits."""
    for place, (state, matrix) in enumerate(zip(states, matrices, strict=True)):
        if (of_state := grads[2 * place]) is not None:
            of_state[part] = gradient @ matrix
        if (of_matrix := grads[2 * place + 1]) is not None:
            of_matrix += gradient.T @ state


def _rows(
    logits: Sequence[Tensor], target: Tensor, weights: Tensor, kl_share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted gradient of the logits, Σ min(p, q), and weighted loss, for each row.

    The gradient of Σ min(p, q) by q is 1 where q < p and 0 elsewhere. Through the softmax, a gradient g
    becomes q (g - Σ q g). The gradient of KL by the logits is q Σ p - p.
    """
    total = sum((part.float() for part in logits[1:]), logits[0].float())
    logs = total - total.logsumexp(-1, keepdim=True)
    draft, p = logs.exp(), target.float()
    accepted = torch.minimum(p, draft).sum(-1)
    over = (draft >= p).float()
    rejected = draft * (over - (draft * over).sum(-1, keepdim=True))
    divergent = draft * p.sum(-1, keepdim=True) - p
    gradient = ((1 - kl_share) * rejected + kl_share * divergent) * weights[:, None]
    kl = (torch.special.xlogy(p, p) - p * logs).sum(-1)
    losses = ((1 - kl_share) * (1 - accepted) + kl_share * kl) * weights
    return gradient.to(logits[0].dtype), accepted, losses


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
