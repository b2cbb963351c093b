"""The tree of a plan, and the search for the best shape, with Sequoia's dynamic program (arXiv 2402.12374).

A table gives the probability that, at a reached node of depth d, the child of rank r is the
accepted one. The expected number of tokens of a tree is the sum over its nodes of the products
along their paths, and the best tree of n nodes is composed of the best subtrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.core import MOST_NODES, Drawing, Plan, Tree
from forerun.errors import ConfigError
from forerun.options import check
from forerun.trees.shapes import load_tree

Floats = NDArray[np.float64]

# Acceptance by rank that is assumed if nothing was measured: roughly that of a draft model a tenth of
# the target's size. Only its decline from rank to rank matters for a shape.
TYPICAL_ACCEPTANCE = (0.6, 0.12, 0.05, 0.03, 0.02, 0.012, 0.008, 0.006)


@dataclass(frozen=True)
class BestShape:
    """A shape and its expected tokens per round, including the recovered or bonus token."""

    shape: Tree
    tokens: float


def best_shape(acceptance: ArrayLike, num_nodes: int, depth: int) -> BestShape:
    """The shape with the most expected tokens within `num_nodes` nodes and `depth` levels.

    Args:
        acceptance: by rank [R], or by depth and rank [D, R]; deeper nodes take the values of the
            last depth.
        num_nodes: most nodes, 1 to 128.
        depth: most tokens along any path.

    Raises:
        ConfigError: for sizes below one, more than 128 nodes, or invalid acceptances.
    """
    size = check("num_nodes", num_nodes, int, ge=1, le=MOST_NODES)
    program = _Program(_table(acceptance, depth), size)
    # A few ranks and levels may not have room for that many nodes.
    while not np.isfinite(program.value[size + 1]):
        size -= 1
    return BestShape(Tree(program.parents(size)), float(program.value[size + 1]))


class _Program:
    """The dynamic program: value[n + 1] is the most tokens that a tree of n nodes gives, the text's included.

    It works level by level from the deepest. The children of a node with rank r and above share m
    nodes: the r-th takes k >= 1 of them and the rest goes on to rank r + 1, or there is no further
    child.

    Args:
        table: acceptance by depth and rank; its rows are the levels that a tree may have.
        most: most nodes of a tree.
    """

    def __init__(self, table: Floats, most: int) -> None:
        depths, ranks = table.shape
        count, taken = np.indices((most + 1, most + 1))
        self._rest = np.where((taken >= 1) & (taken <= count), count - taken, most + 1)
        self._taken = np.zeros((depths, ranks, most + 1), dtype=int)
        # A subtree of the deepest level is its root alone.
        self.value = np.full(most + 2, -np.inf)
        self.value[1] = 1.0
        for depth in reversed(range(depths)):
            # Beyond the last rank there is no node to share. The last entry stands for impossible sizes.
            shared = np.full(most + 2, -np.inf)
            shared[0] = 0.0
            for rank in reversed(range(ranks)):
                shared = self._share(depth, rank, float(table[depth, rank]), shared)
            self.value = np.concatenate([[-np.inf], 1.0 + shared[:-1]])

    def _share(self, depth: int, rank: int, acceptance: float, beyond: Floats) -> Floats:
        """The most that children of this rank and above give, by the number of nodes that they share."""
        worth = self.value[:-1].copy()
        worth[np.isfinite(worth)] *= acceptance
        given = worth + beyond[self._rest]
        self._taken[depth, rank] = given.argmax(1)
        shared = np.append(given.max(1), -np.inf)
        shared[0] = 0.0
        return shared

    def parents(self, size: int) -> tuple[int, ...]:
        """Parents of the best tree of `size` nodes."""
        parents: list[int] = []
        # A node and the number of nodes below it, level by level.
        level, depth = [(-1, size)], 0
        while level:
            below = []
            for node, count in level:
                rank = 0
                while count:
                    taken = int(self._taken[depth, rank, count])
                    parents.append(node)
                    below.append((len(parents) - 1, taken - 1))
                    count, rank = count - taken, rank + 1
            level, depth = below, depth + 1
        return tuple(parents)


def _table(acceptance: ArrayLike, depth: int) -> Floats:
    table = np.asarray(acceptance, dtype=float)
    depth = check("depth", depth, int, ge=1, le=MOST_NODES)
    if table.ndim == 1:
        table = table[None]
    if table.ndim != 2 or not table.size or not np.all((table >= 0) & (table <= 1)):
        raise ConfigError("acceptance must be [ranks] or [depths, ranks], of numbers in [0, 1].")
    missing = max(depth - len(table), 0)
    return np.pad(table, ((0, missing), (0, 0)), mode="edge")[:depth]


AUTO = "auto"

RankAcceptance = tuple[tuple[float, ...], ...]


def resolve_tree(tree: str | Tree | None) -> str | Tree | None:
    """The tree in the file that a text names; `auto`, trees and None are returned unchanged.

    Raises:
        ConfigError: for a file that cannot be read or does not hold a tree.
    """
    return load_tree(tree) if isinstance(tree, str) and tree != AUTO else tree


def plan_tree(
    tree: str | Tree | None,
    num_nodes: int,
    num_tokens: int,
    drawing: Drawing,
    acceptance: RankAcceptance | None = None,
) -> Plan:
    """The plan for one round.

    Args:
        tree: a fixed shape, `auto`, or None for a chain.
        num_nodes: most nodes of an automatic tree.
        num_tokens: most tokens along any path; 0 is a plain round.
        drawing: the way tokens are picked. For greedy drawing an automatic tree has the drafter's
            most probable nodes. Sampled tokens need a shape, the best one for typical drafts. So do
            coupled tokens: their order comes from a seed's noise and says nothing about their
            probability.
        acceptance: acceptance of the drafter's tokens, see `Drafter.acceptance`; None: that of
            typical drafts.
    """
    if tree is None or num_tokens < 1:
        return Plan(num_tokens, drawing)
    if isinstance(tree, Tree):
        # The length is not cut: a drafter that needs no shape may go deeper.
        return Plan(num_tokens, drawing, tree.cut(num_tokens))
    if drawing is Drawing.GREEDY:
        return Plan(num_tokens, drawing, num_nodes=num_nodes)
    return Plan(
        num_tokens, drawing, best_tree(acceptance or TYPICAL_ACCEPTANCE, num_nodes, num_tokens)
    )


@lru_cache(maxsize=256)
def best_tree(acceptance: RankAcceptance | tuple[float, ...], num_nodes: int, depth: int) -> Tree:
    """The shape that `best_shape` finds for an acceptance by rank, or by depth and rank; searched once."""
    return best_shape(acceptance, num_nodes, depth).shape
