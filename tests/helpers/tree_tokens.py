"""Expected tokens of a round of a tree: closed forms that the search and the simulator are held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from forerun.theory.acceptance import distinct_sibling_acceptance, sibling_acceptance


def expected_tokens_tree(parents: Sequence[int], acceptance: ArrayLike) -> float:
    """Tokens a round of a tree, the recovered or bonus token included.

    The sum over all nodes, the committed text being one of them, of the product of acceptances along
    the path to the node (Sequoia, arXiv 2402.12374, section 3, under its assumption that acceptance
    depends on the position, here rank and depth, alone). A chain with [alpha] gives
    `formulas.expected_tokens`.

    Args:
        acceptance: the probability that, at a node reached, the k-th child is the one accepted, by
            rank [ranks] or by depth and rank [depths, ranks].
    """
    depths, ranks = _places(parents)
    table = np.asarray(acceptance)
    if table.ndim == 1:
        table = np.broadcast_to(table, (max(depths, default=-1) + 1, len(table)))
    reached = np.ones(len(depths) + 1)
    for node, parent in enumerate(parents):
        reached[node + 1] = reached[parent + 1] * table[depths[node], ranks[node]]
    return float(reached.sum())


def expected_tokens_branching(
    p: ArrayLike, q: ArrayLike, branching: Sequence[int], *, replacement: bool = False
) -> float:
    """Tokens a round of a drawn tree with branching[d] children at depth d, rows p and q [V] throughout.

    1 + the sum over depths of the probability that one of the siblings is accepted at every depth so
    far. `replacement` says how siblings are drawn.
    """
    siblings = sibling_acceptance if replacement else distinct_sibling_acceptance
    accepted = [float(siblings(p, q, width).sum()) for width in branching]
    return 1.0 + float(np.cumprod(accepted).sum())


def _places(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """The depth of each node and its rank among its siblings."""
    depths: list[int] = []
    ranks: list[int] = []
    children: dict[int, int] = {}
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        ranks.append(children.get(parent, 0))
        children[parent] = ranks[-1] + 1
    return depths, ranks
