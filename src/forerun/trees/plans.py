"""Which tree a plan gets: what the user asked for, as the rule and the rest of the request allow."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from forerun.core import Drawing, Plan, TreePlan
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_shape
from forerun.trees.shapes import TreeShape, shape_of

AUTO = "auto"


def load_tree(tree: str | TreeShape | None) -> str | TreeShape | None:
    """The shape that a file names; `auto`, shapes and None are what they are.

    Raises:
        ConfigError: for a file that cannot be read or holds no tree.
    """
    return TreeShape.load(tree) if isinstance(tree, str) and tree != AUTO else tree


def plan_tree(
    tree: str | TreeShape | None, num_nodes: int, num_tokens: int, drawing: Drawing
) -> Plan:
    """The plan for one round.

    Args:
        tree: a fixed shape, `auto`, or None for a chain.
        num_nodes: of an automatic tree at most.
        num_tokens: along any path; 0 is a plain round.
        drawing: how tokens are picked. An automatic tree is the drafter's most probable nodes where
            tokens are the drafter's first choices. Drawn ones need a shape, which is the best for
            typical drafts, and so do coupled ones: which tokens come first is in a seed's noise, and
            says nothing of how probable they are.
    """
    if tree is None or num_tokens < 1:
        return Plan(num_tokens, drawing)
    if isinstance(tree, TreeShape):
        return _shaped(tree.cut(num_tokens), num_tokens, drawing)
    if drawing is Drawing.TOP:
        return Plan(num_tokens, drawing, TreePlan(num_nodes))
    return _shaped(_typical_shape(num_nodes, num_tokens), num_tokens, drawing)


def _shaped(shape: TreeShape, num_tokens: int, drawing: Drawing) -> Plan:
    # The length stays what it is: a drafter that needs no shape may go deeper.
    return Plan(num_tokens, drawing, TreePlan(len(shape), shape.parents))


def cut(plan: Plan, depth: int) -> Plan:
    """The same plan with paths of at most `depth` >= 1 tokens."""
    if plan.num_tokens <= depth:
        return plan
    tree = plan.tree
    if tree is not None and tree.parents is not None:
        shape = shape_of(tree.parents).cut(depth)
        tree = TreePlan(len(shape), shape.parents)
    return replace(plan, num_tokens=depth, tree=tree)


@lru_cache(maxsize=256)
def _typical_shape(num_nodes: int, depth: int) -> TreeShape:
    return best_shape(TYPICAL_ACCEPTANCE, num_nodes, depth).shape
