"""Block verification as its paper writes it, for chains alone (Sun et al., arXiv 2403.10444).

What ships is traversal verification on a chain; this holds it against a form of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.core import Draft
from forerun.verification.decision import Decision, end_at, normalized


def decide(draft: Draft, target_probs: Tensor) -> Decision:
    """The tests of block verification, from the last node back to the first (algorithm 2).

    With w_i = min(1, w_{i-1} p_i/q_i) and r_i = max(w_i p - q, 0) over the row after node i, the
    path ends at node i with probability sum(r_i) / (sum(r_i) + 1 - w_i), at the last one with
    w_n, and emits from r_i, or from the target row after the last node.

    Args:
        draft: a drawn chain of n >= 1 tokens.
        target_probs: [n + 1, V].
    """
    q = draft.dense_probs(target_probs.shape[-1])
    assert q is not None
    count = len(draft)
    weights = torch.stack(_weights(draft, target_probs, q))
    residual = (weights[:-1, None] * target_probs[:-1] - q).clamp_min(0.0)
    spare = residual.sum(-1)[1:]
    missing = 1.0 - weights[1:-1]
    # Nothing spare and nothing missing: this end is never reached, and 0/0 must not be either.
    inner = torch.where(spare + missing > 0, spare / (spare + missing), torch.ones_like(spare))
    return Decision(
        accept=torch.cat([inner, weights[-1:]]),
        on_accept=tuple(end_at(node) for node in range(count)),
        on_reject=(end_at(-1), *range(count - 1)),
        start=count - 1,
        emit=torch.cat([normalized(residual, target_probs[:-1]), target_probs[-1:]]),
    )


def _weights(draft: Draft, target_probs: Tensor, draft_probs: Tensor) -> list[Tensor]:
    """The share of each prefix of the chain that the target would have taken, w_0 to w_n."""
    weights = [target_probs.new_ones(())]
    for node, token in enumerate(draft.token_ids):
        p, q = target_probs[node, token], draft_probs[node, token]
        share = weights[-1] * p / q if q > 0 else torch.zeros_like(p)
        weights.append(share.clamp(max=1.0))
    return weights
