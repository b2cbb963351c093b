"""Trees of drafted tokens: their shapes, the search for good ones, and growing them under a budget."""

from forerun.trees.shapes import MOST_NODES, TreeShape

__all__ = ["MOST_NODES", "TreeShape"]
