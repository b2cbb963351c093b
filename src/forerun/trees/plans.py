"""Which tree a plan gets: what the user asked for, as the rule and the rest of the request allow."""

from __future__ import annotations

from functools import lru_cache

from forerun.core import Drawing, Plan, Tree
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_shape
from forerun.trees.shapes import load_tree

AUTO = "auto"

Acceptance = tuple[tuple[float, ...], ...]


def resolve_tree(tree: str | Tree | None) -> str | Tree | None:
    """The tree in the file that a text names; `auto`, trees and None are what they are.

    Raises:
        ConfigError: for a file that cannot be read or does not hold a tree.
    """
    return load_tree(tree) if isinstance(tree, str) and tree != AUTO else tree


def plan_tree(
    tree: str | Tree | None,
    num_nodes: int,
    num_tokens: int,
    drawing: Drawing,
    acceptance: Acceptance | None = None,
) -> Plan:
    """The plan for one round.

    Args:
        tree: a fixed shape, `auto`, or None for a chain.
        num_nodes: of an automatic tree at most.
        num_tokens: along any path; 0 is a plain round.
        drawing: how tokens are picked. An automatic tree is the drafter's most probable nodes where
            tokens are the drafter's first choices. Sampled ones need a shape, which is the best for
            typical drafts, and so do coupled ones: which tokens come first is in a seed's noise, and
            says nothing of how probable they are.
        acceptance: of the drafter's tokens, see `Drafter.acceptance`; None: that of typical drafts.
    """
    if tree is None or num_tokens < 1:
        return Plan(num_tokens, drawing)
    if isinstance(tree, Tree):
        # The length stays what it is: a drafter that needs no shape may go deeper.
        return Plan(num_tokens, drawing, tree.cut(num_tokens))
    if drawing is Drawing.GREEDY:
        return Plan(num_tokens, drawing, num_nodes=num_nodes)
    return Plan(
        num_tokens, drawing, best_tree(acceptance or TYPICAL_ACCEPTANCE, num_nodes, num_tokens)
    )


@lru_cache(maxsize=256)
def best_tree(acceptance: Acceptance | tuple[float, ...], num_nodes: int, depth: int) -> Tree:
    """The shape that `best_shape` has for an acceptance by rank, or by depth and rank, searched once."""
    return best_shape(acceptance, num_nodes, depth).shape
