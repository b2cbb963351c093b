"""Trees of drafted tokens: siblings, branching, and what a round of a tree gives.

A tree is the list of its parents: `parents[i] < i`, -1 for a child of the committed text. The k-th
child of a node (its rank) is tested when those before it were rejected.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from forerun.checks import several, shown, whole
from forerun.errors import ConfigError
from forerun.theory.inputs import Floats, as_row_pair, fractions
from forerun.theory.rows import acceptance_rate, corrected_distribution

LARGEST_TREE = 4096
MOST_ORDERS = 1 << 17


def branching_parents(branching: Sequence[int]) -> tuple[int, ...]:
    """The parents of a tree in which each node of depth d has branching[d] children, depth by depth.

    Raises:
        ConfigError: for a depth without children, or more than 4096 nodes.
    """
    widths = several(whole(1, LARGEST_TREE))("branching", branching)
    if sum(itertools.accumulate(widths, operator.mul)) > LARGEST_TREE:
        raise ConfigError(
            f"branching {shown(tuple(widths))} gives a tree of more than {LARGEST_TREE} nodes; "
            "give fewer children or depths."
        )
    parents: list[int] = []
    level = [-1]
    for width in widths:
        first = len(parents)
        parents += [node for node in level for _ in range(width)]
        level = list(range(first, len(parents)))
    return tuple(parents)


def sibling_acceptance(p: ArrayLike, q: ArrayLike, count: int) -> Floats:
    """The probability that the k-th of `count` siblings is the one accepted, [..., count].

    The siblings are drawn from q *with replacement* and tested in order, each against what the ones
    before it have left of p (SpecInfer, arXiv 2305.09781, multi-step speculative sampling). The sum
    over the last axis is the probability that one of them is accepted.

    Raises:
        DistributionError: for rows that are no probabilities or of different vocabularies.
        ConfigError: for a count below one.
    """
    left, draft = as_row_pair(p, q)
    by_rank, rejected = [], np.ones(left.shape[:-1])
    for _ in range(whole(1, LARGEST_TREE)("count", count)):
        accepted = np.asarray(acceptance_rate(left, draft))
        by_rank.append(rejected * accepted)
        rejected = rejected * (1.0 - accepted)
        left = corrected_distribution(left, draft)
    return np.stack(by_rank, -1)


def distinct_sibling_acceptance(p: ArrayLike, q: ArrayLike, count: int) -> Floats:
    """The same for siblings drawn *without replacement*, [count], by enumeration of their orders.

    The k-th sibling is drawn from q less the ones before it, and tested against that row (as Sequoia
    draws and verifies, arXiv 2402.12374). Where q has fewer tokens than siblings, no more are drawn.

    Args:
        p, q: one row each, [V]; V^(count - 1) orders are gone through.

    Raises:
        As `sibling_acceptance`; ConfigError for stacks of rows and for too many orders.
    """
    target, draft = as_row_pair(p, q)
    ranks = whole(1, LARGEST_TREE)("count", count)
    if target.ndim > 1:
        raise ConfigError("distinct siblings are enumerated for one row at a time; give [V].")
    if len(target) ** (ranks - 1) > MOST_ORDERS:
        raise ConfigError(
            f"{ranks} siblings of {len(target)} tokens are too many orders; shorten one of them."
        )
    by_rank = np.zeros(ranks)
    _test_siblings(target, draft, 1.0, by_rank)
    return by_rank


def _test_siblings(left: Floats, draft: Floats, reached: float, by_rank: Floats) -> None:
    """Add the tests of one more sibling, and of those behind it, to `by_rank` (its later entries)."""
    by_rank[0] += reached * np.minimum(left, draft).sum()
    if len(by_rank) == 1:
        return
    residual = np.maximum(left - draft, 0.0)
    residual = residual / residual.sum() if residual.sum() > 0.0 else left
    for token in np.flatnonzero(draft > left):
        rejected = reached * float(draft[token] - left[token])
        others = draft.copy()
        others[token] = 0.0
        if others.sum() > 0.0:
            _test_siblings(residual, others / others.sum(), rejected, by_rank[1:])


def expected_tokens_tree(parents: Sequence[int], acceptance: ArrayLike) -> float:
    """Tokens a round of a tree, the recovered or bonus token included.

    The sum over all nodes, the committed text being one of them, of the product of acceptances along
    the path to the node (Sequoia, arXiv 2402.12374, section 3, under its assumption that acceptance
    depends on the position, here rank and depth, alone). A chain with [alpha] gives
    `formulas.expected_tokens`.

    Args:
        acceptance: the probability that, at a node reached, the k-th child is the one accepted, by
            rank [ranks] or by depth and rank [depths, ranks].

    Raises:
        ConfigError: for parents that are no tree, acceptances outside [0, 1], whose sum over the
            ranks exceeds one, or that are fewer than the tree's ranks or depths.
    """
    depths, ranks = _places(parents)
    table = fractions("acceptance", acceptance)
    if table.ndim not in (1, 2) or np.any(table.sum(-1) > 1.0 + 1e-9):
        raise ConfigError(
            "acceptance must be [ranks] or [depths, ranks] and sum to at most 1 over the ranks: "
            "one child at most is accepted."
        )
    depth, width = max(depths, default=-1) + 1, max(ranks, default=-1) + 1
    if table.ndim == 1:
        table = np.broadcast_to(table, (depth, table.shape[0]))
    if table.shape[0] < depth or table.shape[1] < width:
        raise ConfigError(
            f"acceptance covers {table.shape[0]} depths and {table.shape[1]} ranks; "
            f"the tree has {depth} and {width}."
        )
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
    widths = several(whole(1, LARGEST_TREE))("branching", branching)
    siblings = sibling_acceptance if replacement else distinct_sibling_acceptance
    accepted = [float(siblings(p, q, width).sum()) for width in widths]
    return 1.0 + float(np.cumprod(accepted).sum())


def _places(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """The depth of each node and its rank among its siblings."""
    depths: list[int] = []
    ranks: list[int] = []
    children: dict[int, int] = {}
    for node, entry in enumerate(parents):
        parent = whole(-1, node - 1)(f"the parent of node {node}", entry)
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        ranks.append(children.get(parent, 0))
        children[parent] = ranks[-1] + 1
    return depths, ranks
