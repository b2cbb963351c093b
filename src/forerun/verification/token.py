"""Token-wise verification of chains, drawn trees and point masses.

Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318) for chains; siblings drawn
one after the other as in SpecInfer (arXiv 2305.09781) and Sequoia (arXiv 2402.12374).
"""

from __future__ import annotations

from torch import Tensor

from forerun.core import Draft, Tree
from forerun.verification.decision import (
    Decision,
    DecisionRule,
    acceptance,
    decide_natively,
    end_at,
    nodes_by,
    normalized,
    token_ids_and_rows,
)


def decide(draft: Draft, target_probs: Tensor) -> Decision:
    """The tests of the token rule, from the root down.

    A child is accepted with probability min(1, p/q), where p is the target row less what the
    siblings before it have taken and q its own recorded row. If all children of a node are
    rejected, a token is emitted from what is left of p. A point mass is the row q = 1 at its token;
    siblings tested in this way divide up one draw from p.

    Args:
        draft: any tree.
        target_probs: [n + 1, V].
    """
    return decide_natively("token", draft, target_probs) or _decide_in_torch(draft, target_probs)


def _decide_in_torch(draft: Draft, target_probs: Tensor) -> Decision:
    left = target_probs.clone()
    accept = target_probs.new_zeros(len(draft))
    rows = draft.dense_probs(target_probs.shape[-1])
    tokens, parent_rows = token_ids_and_rows(draft, left.device)
    # All first children are tested at once, then all second children, and so on.
    for nodes in nodes_by(draft.tree.ranks):
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
    on_accept, on_reject, start = _from_the_root(draft.tree)
    return Decision(accept.clamp_(0.0, 1.0), on_accept, on_reject, start, left)


def _from_the_root(tree: Tree) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The next step after each test: if it passes, the node's first child; if not, its next sibling."""
    first = [next(iter(tree.children(node)), end_at(node)) for node in range(-1, len(tree))]
    on_reject = (
        tree.next_sibling.get(node, end_at(parent)) for node, parent in enumerate(tree.parents)
    )
    return tuple(first[1:]), tuple(on_reject), first[0]


class TokenRule(DecisionRule, native="token"):
    """Accept or reject token by token."""

    name = "token"

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        return decide(draft, target_probs)
