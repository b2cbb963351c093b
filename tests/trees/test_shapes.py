"""Shapes are trees or typed errors, in every notation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import MOST_NODES, Tree
from forerun.errors import ConfigError
from forerun.trees.shapes import load_tree, parse_tree, tree_from_paths
from tests.helpers.tree_strategies import shapes


@given(shapes())
def test_paths_and_back_is_the_same_tree(shape: Tree) -> None:
    """Level by level, that is: the paths themselves are kept."""
    again = tree_from_paths(shape.paths)
    assert sorted(again.paths) == sorted(shape.paths)
    assert tree_from_paths(reversed(again.paths)) == again


@given(shapes(), st.integers(1, 6))
def test_a_cut_keeps_all_that_is_not_too_deep(shape: Tree, depth: int) -> None:
    cut = shape.cut(depth)
    assert cut.depth <= depth
    assert sorted(cut.paths) == sorted(path for path in shape.paths if len(path) <= depth)


@given(shapes())
def test_files_hold_what_was_saved(shape: Tree) -> None:
    for content in (list(shape.parents), {"parents": list(shape.parents)}, shape.paths):
        found = parse_tree(content)
        assert sorted(found.paths) == sorted(shape.paths)


def test_a_file_may_hold_notes(tmp_path: Path) -> None:
    shape = Tree.branching((3, 2, 1))
    content = {"parents": shape.parents, "note": "why"}
    (tmp_path / "tree.json").write_text(json.dumps(content))
    assert load_tree(tmp_path / "tree.json") == shape


def test_branching_counts_its_children() -> None:
    shape = Tree.branching((2, 3))
    assert shape.depths.count(0) == 2
    assert shape.depths.count(1) == 6
    assert Tree.chain(4).parents == (-1, 0, 1, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "give"),
        ("{}", "give"),
        ("7", "give"),
        ('{"parents": [-1], "paths": [[0]]}', "give"),
        ("[0]", "the parent of node 0 is 0"),
        ("[-1, 1]", "the parent of node 1 is 1"),
        ("[-1, -2]", "the parent of node 1 is -2"),
        ("[-1, 0.0]", "the parent of node 1 is 0.0"),
        ("[-1, true]", "the parent of node 1 is True"),
        ("[-1, null]", "the parent of node 1 is None"),
        ('["a"]', "the parent of node 0"),
        ("[[0], []]", "is not a path"),
        ("[[1]]", "needs path [0]"),
        ("[[0], [1, 0]]", "needs path [1]"),
        ("[[0, -1]]", "is not a path"),
        (str([-1] * (MOST_NODES + 1)), "a tree of 129 nodes"),
    ],
)
def test_what_is_no_tree_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tree.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"tree\.json") as error:
        load_tree(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tree(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tree(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe[1]")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_tree(tmp_path / "binary")
