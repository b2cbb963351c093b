"""Fixed shapes of trees, from a list or from a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forerun.core import MOST_NODES, Tree
from forerun.errors import ConfigError, shown
from forerun.files import parse_json, printable, read_text

# The largest tree takes a few hundred bytes.
MOST_BYTES = 2**20


def parse_tree(content: Any) -> Tree:
    """Read a tree from a value that a user or a file gives.

    Args:
        content: a `Tree`, `{"parents": [-1, -1, 0]}`, `{"paths": [[0], [1], [0, 0]]}`, or the bare
            list of either.

    Raises:
        ConfigError: for anything else, an empty tree, and one of more than 128 nodes.
    """
    tree = content if isinstance(content, Tree) else _read(content)
    if not 1 <= len(tree) <= MOST_NODES:
        raise ConfigError(f"a tree of {len(tree)} nodes was given; give 1 to {MOST_NODES} nodes.")
    return tree


def _read(content: Any) -> Tree:
    if isinstance(content, Mapping):
        known = {"parents", "paths"} & content.keys()
        content = content[known.pop()] if len(known) == 1 else None
    if not isinstance(content, (list, tuple)) or not content:
        raise ConfigError(
            'give {"parents": [-1, -1, 0]}, {"paths": [[0], [1], [0, 0]]} or one of these lists.'
        )
    if all(isinstance(entry, (list, tuple)) for entry in content):
        return tree_from_paths(content)
    for node, parent in enumerate(content):
        if not _is_index(parent) or not -1 <= parent < node:
            raise ConfigError(
                f"the parent of node {node} is {shown(parent)}; it must be an earlier node, or "
                "-1 for the committed text."
            )
    return Tree(tuple(content))


def tree_from_paths(paths: Iterable[Sequence[int]]) -> Tree:
    """Make a tree from the ranks on the path to each node, in any order: `[[0], [1], [0, 0]]`.

    Raises:
        ConfigError: for a path whose prefix, or whose earlier sibling, is missing.
    """
    # Level by level, earlier siblings first.
    ordered = sorted(map(_as_path, paths), key=lambda path: (len(path), path))
    twice = [list(path) for path, following in itertools.pairwise(ordered) if path == following]
    if twice:
        raise ConfigError(f"path {twice[0]} is there twice; give it once.")
    nodes = {path: node for node, path in enumerate(ordered)}
    nodes[()] = -1
    for path in ordered:
        sibling = (*path[:-1], path[-1] - 1)
        needed = [path[:-1], *([sibling] if path[-1] else [])]
        missing = [list(other) for other in needed if other not in nodes]
        if missing:
            raise ConfigError(f"path {list(path)} needs path {missing[0]}; add it.")
    return Tree(tuple(nodes[path[:-1]] for path in ordered))


def load_tree(path: str | Path) -> Tree:
    """Read a tree from a JSON file, see `parse_tree`.

    Raises:
        ConfigError: for a file that cannot be read or does not hold a tree.
    """
    text = read_text(path, "tree file", ConfigError, most_bytes=MOST_BYTES)
    content = parse_json(text, f"tree file {printable(path)}", ConfigError)
    try:
        return parse_tree(content)
    except ConfigError as error:
        raise ConfigError(f"{printable(path)} does not hold a tree: {error}") from None


def _as_path(path: Any) -> tuple[int, ...]:
    ranks = tuple(path) if isinstance(path, (list, tuple)) else ()
    if not ranks or not all(_is_index(rank) and rank >= 0 for rank in ranks):
        raise ConfigError(f"{shown(path)} is not a path; give the ranks on it, as in [0, 1].")
    return ranks


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
