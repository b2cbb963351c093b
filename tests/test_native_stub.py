"""The stub of the kernels names what they have, with the arguments that they take."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from forerun import _native

pytestmark = pytest.mark.skipif(not _native.AVAILABLE, reason="built without kernels")


def arguments(body: list[ast.stmt], prefix: str = "") -> dict[str, list[str]]:
    """Functions and methods of a stub, by name, with their arguments, properties apart."""
    found: dict[str, list[str]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= arguments(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
            names = [] if is_property else [one.arg for one in node.args.args]
            found[prefix + node.name] = names
    return found


def compiled(name: str) -> list[str]:
    """The arguments of a compiled function, from the signature in its docstring."""
    owner: Any = _native.kernels
    for part in name.split("."):
        owner = getattr(owner, part)
    if isinstance(owner, property):
        return []
    signature = str(owner.__doc__).splitlines()[0]
    inside = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", signature))
    inside = inside[inside.index("(") + 1 : inside.rindex(") ->")]
    return re.findall(r"(?:^|, )(\w+)(?=:|,|$| =)", inside)


def test_stub_and_module_agree() -> None:
    stub = Path(_native.__file__).with_name("kernels.pyi")
    for name, expected in arguments(ast.parse(stub.read_text(encoding="utf-8")).body).items():
        assert compiled(name) == expected, name
