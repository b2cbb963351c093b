"""Builds the site of the documentation into build/site/html: `make docs`.

Collects the pages as they lie in the repository, so that their links hold in both places; formulas become
MathML, which browsers show without a script, and the notebook becomes a page. Any warning, such as a link
that leads nowhere, fails the build.

python docs/build_site.py
"""

from __future__ import annotations

import argparse
import base64
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import api

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "site" / "pages"
SOURCES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "zoo/README.md",
    "docs/*.md",
    "docs/*.svg",
    "docs/benchmarks/*.svg",
)
NOTEBOOK = "docs/notebooks/speculative_decoding.ipynb"

_FORMULA = re.compile(r"^\$\$(.+?)\$\$$", re.DOTALL | re.MULTILINE)


def collect() -> None:
    """Copy the pages into build/site/pages, anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for source in sorted(file for pattern in SOURCES for file in ROOT.glob(pattern)):
        page = PAGES / source.relative_to(ROOT)
        page.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            text = source.read_text(encoding="utf-8").replace(".ipynb)", ".md)")
            page.write_text(_FORMULA.sub(mathml, text), encoding="utf-8")
        else:
            shutil.copy(source, page)
    write_notebook(PAGES / NOTEBOOK)
    (PAGES / "docs" / "api.md").write_text(api.render(), encoding="utf-8")


def mathml(formula: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    return f"<div>{convert(' '.join(formula[1].split()), display='block')}</div>"


def write_notebook(path: Path) -> None:
    """The notebook as a page, with its pictures beside it."""
    import nbformat

    path.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for cell in nbformat.read(ROOT / NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts.extend(filter(None, (shown(output, path) for output in cell.outputs)))
    text = "\n\n".join(parts)
    path.with_suffix(".md").write_text(_FORMULA.sub(mathml, text) + "\n", encoding="utf-8")


def shown(output: Any, path: Path) -> str:
    """An output of a cell as Markdown."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = path.with_name(f"{len(list(path.parent.glob('*.png'))) + 1}.png")
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return f"![]({picture.name})"
    text = output.get("text") or data.get("text/plain", "")
    return f"```text\n{text.rstrip()}\n```" if text else ""


def build() -> int:
    """Build the site from the pages; its exit code."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    collect()
    sys.exit(build())
