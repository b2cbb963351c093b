"""Block verification of drawn chains (Sun et al., arXiv 2403.10444, algorithm 2).

The chain is judged as a whole: what early tokens have to spare makes up for later ones, so that it
never accepts less than the token rule on average, and more wherever the two models differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.core import Draft
from forerun.errors import ConfigError
from forerun.verification import compiled
from forerun.verification.compiled import CompiledRule
from forerun.verification.decision import Decision, end_at, normalized


def decide(draft: Draft, target_probs: Tensor) -> Decision:
    """The tests of block verification, from the last node back to the first.

    With w_i = min(1, w_{i-1} p_i/q_i) and r_i = max(w_i p - q, 0) over the row after node i, the
    path ends at node i with probability sum(r_i) / (sum(r_i) + 1 - w_i), at the last one with
    w_n, and emits from r_i, or from the target row after the last node.

    Args:
        draft: a drawn chain.
        target_probs: [n + 1, V].

    Raises:
        ConfigError: for a tree or a point mass.
    """
    _refuse_others(draft)
    if compiled.takes(draft, target_probs):
        return compiled.decide("block", draft, target_probs)
    draft_probs = draft.dense_probs(target_probs.shape[-1])
    if draft_probs is None:
        return Decision(target_probs.new_zeros(0), (), (), end_at(-1), target_probs)
    count = len(draft)
    q = draft_probs.to(target_probs)
    weights = torch.stack(_weights(draft, target_probs, q))
    residual = (weights[:-1, None] * target_probs[:-1] - q).clamp_min_(0.0)
    spare = residual.sum(-1)[1:]
    missing = 1.0 - weights[1:-1]
    # Nothing spare and nothing missing: this end is never reached, and 0/0 must not be either.
    inner = torch.where(spare + missing > 0, spare / (spare + missing), torch.ones_like(spare))
    emit = torch.cat([normalized(residual, target_probs[:-1]), target_probs[-1:]])
    return Decision(
        accept=torch.cat([inner, weights[-1:]]),
        on_accept=tuple(end_at(node) for node in range(count)),
        on_reject=(end_at(-1), *range(count - 1)),
        start=count - 1,
        emit=emit,
    )


def _refuse_others(draft: Draft) -> None:
    if not draft.is_chain or (draft.probs is None and len(draft)):
        raise ConfigError(
            "block verification takes drawn chains; use 'token' for trees and point masses."
        )


def _weights(draft: Draft, target_probs: Tensor, draft_probs: Tensor) -> list[Tensor]:
    """The share of each prefix of the chain that the target would have taken, w_0 to w_n."""
    weights = [target_probs.new_ones(())]
    for node, token in enumerate(draft.token_ids):
        p, q = target_probs[node, token], draft_probs[node, token]
        share = weights[-1] * p / q if q > 0 else torch.zeros_like(p)
        weights.append(share.clamp(max=1.0))
    return weights


class BlockRule(CompiledRule):
    """Accept or reject a chain as a whole."""

    name = "block"
    compiled_as = "block"

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        return decide(draft, target_probs)

    def check(self, draft: Draft) -> None:
        _refuse_others(draft)
