"""What was accepted, by depth and rank, and the fastest shape for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from forerun.core import Draft, Tree, Verdict
from forerun.trees.search import best_shape

Floats = NDArray[np.float64]

# How the acceptance of a rank that was never drafted is taken from the rank before it.
_FALL = 0.6


class AcceptanceCounts:
    """Counts of rounds.

    Args:
        depths, ranks: up to which to count.
    """

    def __init__(self, depths: int, ranks: int) -> None:
        self.tested = np.zeros((depths, ranks), dtype=int)
        self.accepted = np.zeros((depths, ranks), dtype=int)

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Count one round: at every node that was reached, which of its children was accepted."""
        depths, ranks = self.tested.shape
        at = -1
        for depth in range(min(depths, verdict.num_accepted + 1)):
            children = draft.tree.children(at)
            ended = depth == verdict.num_accepted
            # A request that ended inside the path does not tell which node came next.
            if not children or (not ended and depth >= len(verdict.path)):
                return
            self.tested[depth, : len(children)] += 1
            if ended:
                return
            at = verdict.path[depth]
            if children.index(at) < ranks:
                self.accepted[depth, children.index(at)] += 1

    def table(self) -> Floats:
        """The probability that, at a node reached, the child of a rank is the one accepted, [D, R].

        Ranks that were never drafted fall on from those before; depths that were never reached are
        like those above. Tokens that no rank accepts leave the sum below one.
        """
        table = np.zeros(self.tested.shape)
        for depth in range(len(table)):
            if not self.tested[depth, 0]:
                table[depth] = table[depth - 1] if depth else 0.0
                continue
            for rank in range(table.shape[1]):
                if self.tested[depth, rank]:
                    table[depth, rank] = self.accepted[depth, rank] / self.tested[depth, rank]
                else:
                    table[depth, rank] = _FALL * table[depth, rank - 1]
            table[depth] /= max(1.0, table[depth].sum())
        return table


def fastest_shape(
    table: Floats, num_nodes: int, round_seconds: Callable[[int, int], float]
) -> Tree:
    """The shape of `num_nodes` nodes at most that gives the most tokens a second.

    Args:
        table: acceptance by depth and rank, as of `AcceptanceCounts`; its rows are the levels there may be.
        num_nodes: of the tree at most.
        round_seconds: of a round whose tree has so many nodes and so many levels.
    """
    best = [
        best_shape(table[:levels], size, levels)
        for levels in range(1, len(table) + 1)
        for size in range(levels, num_nodes + 1)
    ]
    rates = [
        choice.tokens / round_seconds(len(choice.shape), choice.shape.depth) for choice in best
    ]
    return best[int(np.argmax(rates))].shape
