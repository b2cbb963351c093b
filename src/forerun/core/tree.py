"""The shape of a draft: a tree of nodes below the committed text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import lt
from typing import TYPE_CHECKING

from forerun.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Number of nodes that every target's cache has room for beyond the context.
MOST_NODES = 128


@dataclass(frozen=True)
class Tree:
    """A tree of nodes, parents first; a chain is a tree without branches.

    Everything that follows from the parents is computed once, at its first use.

    Args:
        parents: parent of each node, an earlier node; -1 is the last committed token. Siblings are
            in the order in which they are drawn, or of falling probability.

    Raises:
        ConfigError: for a parent that is not an earlier node.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(self.parents))
        first = min(self.parents, default=-1) >= -1
        if not first or not all(map(lt, self.parents, range(len(self.parents)))):
            raise ConfigError(
                f"{list(self.parents)} are not the parents of a tree: each must be an earlier node, "
                "or -1 for the committed text."
            )

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Number of drafted ancestors of each node; 0 for a child of the committed text."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    @cached_property
    def depth(self) -> int:
        """Number of nodes on the longest path."""
        return max(self.depths, default=-1) + 1

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Index of each node among its siblings, from 0."""
        counts: dict[int, int] = {}
        ranks = []
        for parent in self.parents:
            ranks.append(counts.get(parent, 0))
            counts[parent] = ranks[-1] + 1
        return tuple(ranks)

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(node)
        return children

    def children(self, node: int) -> Sequence[int]:
        """The children of `node` (-1: the committed text), in order."""
        return self._children.get(node, ())

    @cached_property
    def next_sibling(self) -> dict[int, int]:
        """The next sibling of each node that has one."""
        return dict(itertools.chain.from_iterable(map(itertools.pairwise, self._children.values())))

    @property
    def leaves(self) -> list[int]:
        """The nodes without children."""
        return [node for node in range(len(self)) if node not in self._children]

    def path_to(self, node: int) -> list[int]:
        """The nodes from the first drafted ancestor of `node` to `node`; [] for -1."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The ranks on the path to each node, the form in which Medusa and vLLM write trees."""
        paths: list[tuple[int, ...]] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), rank))
        return paths

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Attention mask [n, n]: each node sees itself and its ancestors. Not to be written to."""
        import numpy as np  # Here, because importing the core types alone loads no NumPy.

        mask = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask

    @cached_property
    def rooted(self) -> Tree:
        """The tree below an added node 0 that stands for the newest committed token."""
        return Tree((-1, *(parent + 1 for parent in self.parents)))

    def cut(self, depth: int) -> Tree:
        """The tree cut to paths of at most `depth` nodes."""
        return self if self.depth <= depth else _cut(self, depth)

    @staticmethod
    def chain(length: int) -> Tree:
        """A tree of `length` nodes, one below the other."""
        return _chain(length)

    @classmethod
    def branching(cls, widths: Sequence[int]) -> Tree:
        """The tree in which every node of level i, the text being level 0, has `widths[i]` children."""
        parents: list[int] = []
        level = [-1]
        for width in widths:
            start = len(parents)
            parents += [node for node in level for _ in range(width)]
            level = list(range(start, len(parents)))
        return cls(tuple(parents))


@lru_cache(maxsize=256)
def _chain(length: int) -> Tree:
    return Tree(tuple(range(-1, length - 1)))


@lru_cache(maxsize=256)
def _cut(tree: Tree, depth: int) -> Tree:
    nodes = [node for node, above in enumerate(tree.depths) if above < depth]
    moved = {node: index for index, node in enumerate(nodes)} | {-1: -1}
    return Tree(tuple(moved[tree.parents[node]] for node in nodes))


NO_TREE = Tree(())
