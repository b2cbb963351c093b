"""The name of a public class stands for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.helpers.documents import ROOT

PACKAGE = ROOT / "src" / "forerun"


def classes_of(path: Path) -> list[str]:
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def test_a_class_name_stands_for_one_thing() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in classes_of(path):
            files[name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: where for name, where in files.items() if len(where) > 1} == {}
