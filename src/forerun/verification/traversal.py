"""Traversal verification of drawn trees (Weng et al., arXiv 2505.12398), and block verification of chains.

The leaves are verified first, in depth-first order, each with the whole path that leads to it, so
that the surplus acceptance of early tokens makes up for later ones. On a chain it is block
verification (Sun et al., arXiv 2403.10444, algorithm 2). docs/theory.md has the derivation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.core import Draft, Tree
from forerun.errors import ConfigError
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


def refuse_point_masses(draft: Draft) -> None:
    if draft.probs is None and len(draft):
        raise ConfigError(
            "traversal verification takes drawn chains and trees; use 'token' for point masses."
        )


def decide(draft: Draft, target_probs: Tensor) -> Decision:
    """The tests of traversal verification, from the leaves back to the root.

    Every node has a weight w, 1 at the root: the share of the draft's arrivals that the target
    wants to pass through it. A child x drawn from q gets the weight min(1, w p(x)/q(x)). After it
    has failed, r = max(w p - q, 0) is left to emit at its parent. The parent's weight becomes
    sum(r) / (sum(r) + 1 - w) and its row becomes r scaled to sum to one; its next child starts from
    these. After all children of a node have failed, the path ends there with probability equal to
    the node's weight, and a token is emitted from its row.

    Args:
        draft: a drawn chain or tree; siblings in drawn order, deeper branches best first.
        target_probs: [n + 1, V].

    Raises:
        ConfigError: for point masses.
    """
    refuse_point_masses(draft)
    decided = decide_natively("traversal", draft, target_probs)
    return decided or _decide_in_torch(draft, target_probs)


def _decide_in_torch(draft: Draft, target_probs: Tensor) -> Decision:
    draft_probs = draft.dense_probs(target_probs.shape[-1])
    if draft_probs is None:
        return Decision(target_probs.new_zeros(0), (), (), end_at(-1), target_probs)
    left = target_probs.clone()
    weights = target_probs.new_ones(len(draft) + 1)
    tokens, parent_rows = token_ids_and_rows(draft, left.device)
    for stage in nodes_by(_stages(draft.tree)):
        nodes = torch.tensor(stage, dtype=torch.long, device=left.device)
        at, token = parent_rows[nodes], tokens[nodes, None]
        p, weight = left[at], weights[at]
        wanted, q = weight[:, None] * p, draft_probs[stage].to(p)
        residual = (wanted - q).clamp_min_(0.0)
        weights[nodes + 1] = acceptance(wanted.gather(1, token), q.gather(1, token))[:, 0]
        weights[at] = _weight_left(residual.sum(-1), weight)
        left[at] = normalized(residual, p)
    on_reject, start = _leaves_first(draft.tree)
    on_accept = tuple(end_at(node) for node in range(len(draft)))
    return Decision(weights[1:], on_accept, on_reject, start, left)


def _weight_left(spare: Tensor, weight: Tensor) -> Tensor:
    """The weight of nodes after one of their children has failed, [k]."""
    missing = 1.0 - weight
    # With nothing spare and nothing missing the child cannot have failed; avoid 0/0.
    return torch.where(spare + missing > 0, spare / (spare + missing), torch.ones_like(spare))


def _stages(tree: Tree) -> list[int]:
    """The stage in which each node can be weighed: after its parent and its earlier siblings.

    The failure of earlier siblings changes a node's weight. No two nodes of a stage share a parent.
    """
    stages: list[int] = []
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        stages.append((stages[parent] if parent >= 0 else -1) + 1 + rank)
    return stages


def _leaves_first(tree: Tree) -> tuple[tuple[int, ...], int]:
    """The test after each node's test has failed, and the first test, which is that of the first leaf.

    After a node comes the first leaf below its next sibling, or its parent.
    """

    def first_leaf(node: int) -> int:
        while tree.children(node):
            node = tree.children(node)[0]
        return node

    on_reject = [parent if parent >= 0 else end_at(-1) for parent in tree.parents]
    for node, sibling in tree.next_sibling.items():
        on_reject[node] = first_leaf(sibling)
    return tuple(on_reject), first_leaf(-1)


class TraversalRule(DecisionRule, native="traversal"):
    """Accept or reject the leaves of a tree first, each with its whole path."""

    name = "traversal"

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        return decide(draft, target_probs)

    def check(self, draft: Draft) -> None:
        refuse_point_masses(draft)


class BlockRule(TraversalRule, native="traversal"):
    """Accept or reject a chain as a whole."""

    name = "block"

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        self.check(draft)
        return super().decide(draft, target_probs)

    def check(self, draft: Draft) -> None:
        if not draft.tree.is_chain or (draft.probs is None and len(draft)):
            raise ConfigError(
                "block verification takes drawn chains; use 'token' for trees and point masses."
            )
