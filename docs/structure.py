"""Writes the generated parts of docs/structure.md: the layers, and a line for each package.

python docs/structure.py
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "structure.md"
PARTS = ("layers", "packages")


def layers() -> str:
    """Who may import whom, as import-linter enforces it: each line from those below alone."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = config["tool"]["importlinter"]["contracts"][0]
    return "```\n" + "\n".join(contract["layers"]) + "\n```\n"


def packages() -> str:
    """A table of the packages with the first sentence that each says of itself."""
    lines = []
    for path in sorted((ROOT / "src" / "forerun").rglob("__init__.py"))[1:]:
        doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        first = re.split(r"(?<=\.)\s", doc, maxsplit=1)[0].replace("\n", " ").replace("|", r"\|")
        name = path.parent.relative_to(ROOT / "src" / "forerun").as_posix()
        lines.append(f"| `{name}/` | {first} |")
    return "| package | what it is |\n| --- | --- |\n" + "\n".join(lines) + "\n"


def render(page: str) -> str:
    """The page with its generated parts as they are now."""
    for part, text in zip(PARTS, (layers(), packages()), strict=True):
        begin, end = f"<!-- {part}: generated -->\n", f"<!-- /{part} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(render(PAGE.read_text("utf-8")), "utf-8")
