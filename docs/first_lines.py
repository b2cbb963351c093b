"""Finds docstrings whose first line cannot be read by itself: it begins with a pronoun or a relative word.

python docs/first_lines.py [PATH…]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "forerun"

_REFUSED = re.compile(
    r"(It|Its|They|Their|Those|These|This|That|The same|Of|What|Which|Whether|How|Where|When|Who|As)\b|[a-z]"
)
_DOCUMENTED = (
    ast.Module,
    ast.ClassDef,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Assign,
    ast.AnnAssign,
)


def main(paths: Iterable[str]) -> int:
    """Print the first lines that are refused; return 1 if there are any."""
    found = [refusal for file in files(list(paths)) for refusal in refusals(file)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


def files(paths: list[str]) -> Iterator[Path]:
    """Python files at or below the paths; without paths, those of the package."""
    for path in map(Path, paths or [str(PACKAGE)]):
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def refusals(file: Path) -> Iterator[str]:
    """Each refused first line of a file, as `path:line: first line`."""
    shown = file.resolve()
    name = shown.relative_to(ROOT) if shown.is_relative_to(ROOT) else file
    for line, text in docstrings(ast.parse(file.read_text(encoding="utf-8"))):
        first = text.strip().partition("\n")[0]
        if _REFUSED.match(first):
            yield f"{name}:{line}: {first}"


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a module, class, function or attribute, from top to bottom."""
    found = []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        # The statement before a docstring: what owns the body, or the assignment of an attribute.
        before: ast.AST = node
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(ast.Constant(str(text))) if isinstance(before, _DOCUMENTED):
                    found.append((statement.lineno, text))
            before = statement
    return iter(sorted(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*")
    sys.exit(main(parser.parse_args().paths))
