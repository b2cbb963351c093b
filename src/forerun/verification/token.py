"""Token-wise verification: of chains, of drawn trees, and of point masses.

Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318) for chains; siblings drawn
one after the other as in SpecInfer (arXiv 2305.09781) and Sequoia (arXiv 2402.12374).
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.core import Draft
from forerun.verification.decision import Decision, DecisionRule, end_at, natively, normalized


@natively("token")
def decide(draft: Draft, target_probs: Tensor) -> Decision:
    """The tests of the token rule, from the root down.

    A child is accepted with min(1, p/q), p being the target row less what the siblings before it
    have taken and q its own recorded row; when all children of a node are rejected, what is left
    of p is emitted. A point mass is the row q = 1 at its token: tested that way, siblings cut up
    one draw from p.

    Args:
        draft: any tree.
        target_probs: [n + 1, V].
    """
    left = target_probs.clone()
    accept = target_probs.new_zeros(len(draft))
    rows = draft.dense_probs(target_probs.shape[-1])
    tokens = torch.tensor(draft.token_ids, dtype=torch.long, device=left.device)
    parent_rows = torch.tensor(draft.tree.parents, dtype=torch.long, device=left.device) + 1
    for nodes in _siblings_by_rank(draft):
        at, token = parent_rows[nodes], tokens[nodes, None]
        p = left[at]
        if rows is None:
            accept[nodes] = p.gather(1, token)[:, 0]
            residual = p.scatter(1, token, 0.0)
        else:
            q = rows[nodes].to(p)
            accept[nodes] = acceptance(p.gather(1, token), q.gather(1, token))[:, 0]
            residual = (p - q).clamp_min_(0.0)
        left[at] = normalized(residual, p)
    on_accept, on_reject, start = _from_the_root(draft)
    return Decision(accept.clamp_(0.0, 1.0), on_accept, on_reject, start, left)


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """min(1, p/q); a token that its own row gives no probability is refused."""
    return (p / q).clamp(max=1.0).where(q > 0, torch.zeros_like(p))


def _siblings_by_rank(draft: Draft) -> list[list[int]]:
    """All first children, then all second children, and so on: nodes that can be tested at once."""
    ranks: list[list[int]] = []
    born: dict[int, int] = {}
    for node, parent in enumerate(draft.tree.parents):
        rank = born.get(parent, 0)
        born[parent] = rank + 1
        if rank == len(ranks):
            ranks.append([])
        ranks[rank].append(node)
    return ranks


def _from_the_root(draft: Draft) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Test i is node i: when it passes, its first child is next; when not, its next sibling."""
    first_child: dict[int, int] = {}
    on_reject = [end_at(parent) for parent in draft.tree.parents]
    latest: dict[int, int] = {}
    for node, parent in enumerate(draft.tree.parents):
        if parent in latest:
            on_reject[latest[parent]] = node
        latest[parent] = node
        first_child.setdefault(parent, node)
    on_accept = tuple(first_child.get(node, end_at(node)) for node in range(len(draft)))
    return on_accept, tuple(on_reject), first_child.get(-1, end_at(-1))


class TokenRule(DecisionRule, native="token"):
    """Accept or reject token by token."""

    name = "token"

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        return decide(draft, target_probs)
