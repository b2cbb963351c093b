"""Writes the generated parts of docs/structure.md (the layers, and a line for each module) and docs/api.md.

python docs/structure.py
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "structure.md"
PARTS = ("layers", "modules")


def layers() -> str:
    """Who may import whom, as import-linter enforces it: each line from those below alone."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = config["tool"]["importlinter"]["contracts"][0]
    return "```\n" + "\n".join(contract["layers"]) + "\n```\n"


def modules() -> str:
    """The first line of every module of the package, then of the kernels' headers, by folder."""
    lines = []
    for path in sorted((ROOT / "src" / "forerun").rglob("*.py"), key=_by_folder):
        name = path.relative_to(ROOT / "src" / "forerun").as_posix()
        doc = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        first = (doc or "").partition("\n\n")[0].replace("\n", " ")
        if first:
            lines.append(
                f"| `{name.removesuffix('__init__.py')}` | {first.replace('|', chr(92) + '|')} |"
            )
    for path in sorted((ROOT / "csrc" / "include" / "forerun").glob("*.h")):
        comment = re.match(r"(?://[^\n]*\n)+", path.read_text("utf-8"))
        first = " ".join(re.findall(r"// ?([^\n]*)", comment[0])) if comment else ""
        lines.append(f"| `csrc/{path.stem}` | {first.partition('. ')[0].rstrip('.')}. |")
    return "| module | what it is |\n| --- | --- |\n" + "\n".join(lines) + "\n"


def render(page: str) -> str:
    """The page with its generated parts as they are now."""
    for part, text in zip(PARTS, (layers(), modules()), strict=True):
        begin, end = f"<!-- {part}: generated -->\n", f"<!-- /{part} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


def _by_folder(path: Path) -> tuple[str, bool, str]:
    # A folder's own line comes first.
    return path.parent.as_posix(), path.name != "__init__.py", path.name


if __name__ == "__main__":
    import api

    PAGE.write_text(render(PAGE.read_text("utf-8")), "utf-8")
    api.write()
