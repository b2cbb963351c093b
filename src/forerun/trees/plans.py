"""The tree of a plan: the user's choice, as far as the rule and the request allow it."""

from __future__ import annotations

from functools import lru_cache

from forerun.core import Drawing, Plan, Tree
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_shape
from forerun.trees.shapes import load_tree

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
