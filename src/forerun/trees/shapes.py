"""Fixed shapes of trees: from a list, from a file, and to a file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from forerun.checks import shown
from forerun.errors import ConfigError
from forerun.files import write_text
from forerun.theory.trees import branching_parents

# Every target's cache has room for so many nodes beyond the context.
MOST_NODES = 128


@dataclass(frozen=True)
class TreeShape:
    """A tree without its tokens.

    Args:
        parents: of each node, an earlier one; -1 is the committed text. Among the children of a
            node an earlier one has the higher rank: it is drawn, or the more probable, first.

    Raises:
        ConfigError: for what is no tree, for none, and for one of more than 128 nodes.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(self.parents))
        if not 1 <= len(self.parents) <= MOST_NODES:
            raise ConfigError(
                f"a tree of {len(self.parents)} nodes was given; give 1 to {MOST_NODES} nodes."
            )
        for node, parent in enumerate(self.parents):
            if not _is_index(parent) or not -1 <= parent < node:
                raise ConfigError(
                    f"the parent of node {node} is {shown(parent)}; it must be an earlier node, "
                    "or -1 for the committed text."
                )

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The number of drafted ancestors of each node."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The place of each node among its siblings, from 0."""
        born: dict[int, int] = {}
        ranks = []
        for parent in self.parents:
            ranks.append(born.get(parent, 0))
            born[parent] = ranks[-1] + 1
        return tuple(ranks)

    @property
    def depth(self) -> int:
        """Tokens on the longest path."""
        return max(self.depths) + 1

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The ranks on the way to each node, as Medusa and vLLM write trees down."""
        found: list[tuple[int, ...]] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), rank))
        return found

    def cut(self, depth: int) -> TreeShape:
        """The tree without what lies deeper than `depth` >= 1 tokens."""
        return self if self.depth <= depth else _cut(self, depth)

    @classmethod
    def chain(cls, length: int) -> TreeShape:
        """One token after the other."""
        return cls(tuple(range(-1, length - 1)))

    @classmethod
    def branching(cls, widths: Sequence[int]) -> TreeShape:
        """Each node of depth d has `widths[d]` children."""
        return cls(branching_parents(widths))

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> TreeShape:
        """From the ranks on the way to each node, in any order: `[[0], [1], [0, 0]]`.

        Raises:
            ConfigError: for a path whose beginning, or whose earlier sibling, is missing.
        """
        # Level by level, earlier siblings first.
        ordered = sorted(map(_as_path, paths), key=lambda path: (len(path), path))
        twice = [list(one) for one, next_one in itertools.pairwise(ordered) if one == next_one]
        if twice:
            raise ConfigError(f"path {twice[0]} is there twice; give it once.")
        nodes = {path: node for node, path in enumerate(ordered)}
        nodes[()] = -1
        for path in ordered:
            sibling = (*path[:-1], path[-1] - 1)
            needed = [path[:-1], *([sibling] if path[-1] else [])]
            missing = [list(one) for one in needed if one not in nodes]
            if missing:
                raise ConfigError(f"path {list(path)} needs path {missing[0]}; add it.")
        return cls(tuple(nodes[path[:-1]] for path in ordered))

    @classmethod
    def load(cls, path: str | Path) -> TreeShape:
        """From a JSON file: `{"parents": [...]}`, `{"paths": [...]}`, or the bare list of either.

        Raises:
            ConfigError: for a file that cannot be read or holds no tree.
        """
        try:
            content = json.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"the tree {path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the tree {path} is no JSON ({shown(str(error))}).") from error
        try:
            return cls.of(content)
        except ConfigError as error:
            raise ConfigError(f"{path} holds no tree: {error}") from None

    @classmethod
    def of(cls, content: Any) -> TreeShape:
        """From what a file holds; see `load`.

        Raises:
            ConfigError: for anything else.
        """
        if isinstance(content, dict):
            known = {"parents", "paths"} & content.keys()
            content = content[known.pop()] if len(known) == 1 else None
        if isinstance(content, (list, tuple)) and content:
            if all(isinstance(entry, (list, tuple)) for entry in content):
                return cls.from_paths(content)
            return cls(tuple(content))
        raise ConfigError(
            'give {"parents": [-1, -1, 0]}, {"paths": [[0], [1], [0, 0]]} or one of these lists.'
        )

    def save(self, path: str | Path, **notes: Any) -> None:
        """Write it to a file that `load` reads, with notes on where it comes from."""
        content = {"parents": list(self.parents), **notes}
        write_text(Path(path), json.dumps(content, indent=2) + "\n")


@lru_cache(maxsize=256)
def shape_of(parents: tuple[int, ...]) -> TreeShape:
    """The shape with these parents, checked once: plans name the same ones in every round."""
    return TreeShape(parents)


@lru_cache(maxsize=256)
def _cut(shape: TreeShape, depth: int) -> TreeShape:
    kept = [node for node, below in enumerate(shape.depths) if below < depth]
    moved = {node: index for index, node in enumerate(kept)} | {-1: -1}
    return TreeShape(tuple(moved[shape.parents[node]] for node in kept))


def _as_path(path: Any) -> tuple[int, ...]:
    ranks = tuple(path) if isinstance(path, (list, tuple)) else ()
    if not ranks or not all(_is_index(rank) and rank >= 0 for rank in ranks):
        raise ConfigError(f"{shown(path)} is no path; give the ranks on it, as in [0, 1].")
    return ranks


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
