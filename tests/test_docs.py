"""The documents say what is so: their code runs, their links lead somewhere, the notebook was run."""

from __future__ import annotations

import getpass
import importlib
import importlib.util
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
WITH_CODE = ("theory.md", "exactness.md")
NOTEBOOK = DOCS / "notebooks" / "speculative_decoding.ipynb"

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks_of(name: str) -> list[tuple[int, str]]:
    """The Python blocks of a document, each with the line that it starts in."""
    text = (DOCS / name).read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in _BLOCK.finditer(text)]


def anchors_of(path: Path) -> set[str]:
    """What `#…` may follow the name of a Markdown file, by GitHub's rules."""
    headings = _HEADING.findall(path.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", WITH_CODE)
def test_the_code_in_the_documents_runs(name: str) -> None:
    """Blocks of a document share their names; the numbers in the text are asserted in them."""
    blocks = blocks_of(name)
    names: dict[str, Any] = {"__name__": name}
    assert len(blocks) > 5
    for line, block in blocks:
        # Errors then point at the line of the document.
        exec(compile("\n" * line + block, str(DOCS / name), "exec"), names)
    assert all("assert" in block for _, block in blocks)


@pytest.mark.parametrize("name", WITH_CODE)
def test_links_lead_somewhere(name: str) -> None:
    for link in _LINK.findall((DOCS / name).read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = DOCS / (file or name)
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("name", WITH_CODE)
def test_names_in_the_text_exist(name: str) -> None:
    """Every `forerun.…` is a module or something in one; every path is there."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for dotted in set(re.findall(r"`(forerun(?:\.\w+)+)`", text)):
        module = dotted
        names: list[str] = []
        while True:
            try:
                found: Any = importlib.import_module(module)
                break
            except ModuleNotFoundError:
                module, _, last = module.rpartition(".")
                names.insert(0, last)
        for one in names:
            found = getattr(found, one)
    for path in set(re.findall(r"`((?:tests|docs|src)/[\w/.]+)`", text)):
        assert (DOCS.parent / path).exists(), path


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return content


def outputs_of(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


def test_the_notebook_is_one(notebook: dict[str, Any]) -> None:
    assert notebook["nbformat"] == 4
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert {cell["cell_type"] for cell in notebook["cells"]} == {"code", "markdown"}
    nbformat = pytest.importorskip("nbformat", reason="comes with the extra docs")
    nbformat.validate(nbformat.from_dict(notebook))


def test_the_notebook_was_run_from_top_to_bottom(notebook: dict[str, Any]) -> None:
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    # The first cell only sets things up.
    assert all(cell["outputs"] for cell in code[1:])
    outputs = outputs_of(notebook)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 6


def test_the_notebook_ends_in_a_proof(notebook: dict[str, Any]) -> None:
    text = json.dumps(outputs_of(notebook))
    assert "passed: True | level: distributional" in text
    assert "identical: True" in text


def test_the_notebook_names_no_machine(notebook: dict[str, Any]) -> None:
    said = json.dumps(
        [
            {**output, "data": {**output.get("data", {}), "image/png": ""}}
            for output in outputs_of(notebook)
        ]
    )
    said += json.dumps([cell["source"] for cell in notebook["cells"]])
    here = {
        str(Path.home()),
        str(DOCS.parent),
        tempfile.gettempdir(),
        "/home/",
        "/Users/",
        "C:\\\\",
    }
    for path in here - {"/"}:
        assert path not in said
    user = getpass.getuser()
    assert not re.search(rf"\b{re.escape(user)}\b", said) or user in ("root", "user")


def test_the_structure_is_that_of_the_code() -> None:
    """`python docs/structure.py` writes it anew."""
    source = importlib.util.spec_from_file_location("structure", DOCS / "structure.py")
    assert source is not None
    assert source.loader is not None
    structure = importlib.util.module_from_spec(source)
    source.loader.exec_module(structure)
    page = (DOCS / "structure.md").read_text(encoding="utf-8")
    assert structure.render(page) == page
