"""The best shape for what was measured: Sequoia's dynamic program (Chen et al., arXiv 2402.12374).

A table says how probable it is that, at a node of depth d that is reached, the child of rank r is the
one accepted. The tokens that a tree gives are then a sum over its nodes of the products along their
paths, and the best tree of n nodes is put together from the best subtrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.core import MOST_NODES, Tree
from forerun.errors import ConfigError
from forerun.options import check

Floats = NDArray[np.float64]

# Acceptance by rank that is assumed where nothing was measured: roughly that of a draft model a
# tenth of the target's size. What matters for a shape is how fast it falls.
TYPICAL_ACCEPTANCE = (0.6, 0.12, 0.05, 0.03, 0.02, 0.012, 0.008, 0.006)


@dataclass(frozen=True)
class BestShape:
    """A shape, and the tokens that it gives a round on average, the recovered or bonus token included."""

    shape: Tree
    tokens: float


def best_shape(acceptance: ArrayLike, num_nodes: int, depth: int) -> BestShape:
    """The shape of `num_nodes` nodes at most, and of `depth` tokens at most, that gives most tokens.

    Args:
        acceptance: by rank [R], or by depth and rank [D, R]; deeper nodes take the last depth's.

    Raises:
        ConfigError: for sizes below one, more than 128 nodes, or invalid acceptances.
    """
    size = check("num_nodes", num_nodes, int, ge=1, le=MOST_NODES)
    program = _Program(_table(acceptance, depth), size)
    # Few ranks and levels may not have room for so many nodes.
    while not np.isfinite(program.value[size + 1]):
        size -= 1
    return BestShape(Tree(program.parents(size)), float(program.value[size + 1]))


class _Program:
    """value[n + 1]: the most that a tree of n nodes gives, the committed token included.

    Level by level from the deepest. Among the children of a node those of rank r and beyond share m
    nodes: the r-th takes k >= 1 of them, the rest goes on to rank r + 1, or there is no further child.

    Args:
        table: acceptance by depth and rank; its rows are the levels that there may be.
        most: nodes of a tree at most.
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
            # Beyond the last rank no nodes can be shared. The last entry stands for impossible sizes.
            shared = np.full(most + 2, -np.inf)
            shared[0] = 0.0
            for rank in reversed(range(ranks)):
                shared = self._share(depth, rank, float(table[depth, rank]), shared)
            self.value = np.concatenate([[-np.inf], 1.0 + shared[:-1]])

    def _share(self, depth: int, rank: int, acceptance: float, beyond: Floats) -> Floats:
        """The most that children of this rank and those beyond give, by the nodes that they share."""
        worth = self.value[:-1].copy()
        worth[np.isfinite(worth)] *= acceptance
        given = worth + beyond[self._rest]
        self._taken[depth, rank] = given.argmax(1)
        shared = np.append(given.max(1), -np.inf)
        shared[0] = 0.0
        return shared

    def parents(self, size: int) -> tuple[int, ...]:
        """The best tree of `size` nodes."""
        parents: list[int] = []
        # A node and how many nodes lie below it, level by level.
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
