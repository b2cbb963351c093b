"""The documents say what is so: links lead somewhere, names exist, generated pages are current."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import forerun
from benchmarks.questions import CATEGORIES
from forerun import _native
from forerun.compression import METHODS
from forerun.drafters import DRAFTERS
from forerun.models.run_config import KERNEL_PRECISIONS
from forerun.policies import POLICIES
from forerun.verification import RULES
from tests.helpers.documents import GENERATED, PAGES, ROOT, blocks_of, read

DOCS = ROOT / "docs"
# Pages whose numbers are asserted by their own blocks of Python, and numbers in them that are no
# results: theorems, versions, a paper's settings, grids of formats, limits of runs of minutes.
WITH_NUMBERS = {
    "docs/theory.md": {3.1, 3.5, 3.8, 3.9},
    "docs/exactness.md": {0.002, 0.005, 0.026, 0.032, 0.035, 0.09, 0.125, 0.156, 0.625},
}
# The first column of a table names all that a registry knows.
LISTS = {
    "method": ("docs/choosing.md", DRAFTERS.names()),
    "policy": ("docs/choosing.md", POLICIES.names()),
    "rule": ("docs/choosing.md", [*RULES.names(), "auto"]),
    "`--kv-method`": ("docs/long-contexts.md", METHODS.names()),
}
MOST_WORDS = 30_000
NOTEBOOK = DOCS / "notebooks" / "speculative_decoding.ipynb"

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_DECIMAL = re.compile(r"(?<![\w./\[-])\d+\.\d+(?![\w.])")
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def anchors_of(path: Path) -> set[str]:
    """What `#…` may follow the name of a Markdown file, by GitHub's rules."""
    headings = _HEADING.findall(_CODE.sub("", path.read_text(encoding="utf-8")))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", WITH_NUMBERS)
def test_numbers_in_the_text_are_asserted(page: str) -> None:
    """`tests/test_snippets.py` runs the blocks."""
    trees = [ast.parse(block.text) for block in blocks_of(page, "python")]
    asserted = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert len(asserted) >= len(trees) > 5
    parts = chain.from_iterable(map(ast.walk, trees))
    constants = {node.value for node in parts if isinstance(node, ast.Constant)}
    text = _HEADING.sub("", _CODE.sub("", read(page)))
    assert {float(number) for number in _DECIMAL.findall(text)} <= constants | WITH_NUMBERS[page]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in _LINK.findall(_CODE.sub("", read(page))):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", PAGES)
def test_names_in_the_text_exist(page: str) -> None:
    """Every `forerun.…` is a module or something in one; every path is there."""
    text = read(page)
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
    for path in set(
        re.findall(r"`((?:tests|docs|src|benchmarks)/[\w/.]+|csrc/[\w/]+\.\w+)`", text)
    ):
        assert (ROOT / path).exists(), path


def first_column(page: str, title: str) -> list[str]:
    """Names in the first cells of the table whose header begins with a title."""
    table = re.search(rf"^\| {re.escape(title)}.*\n\|.*\n((?:\|.*\n)+)", read(page), re.MULTILINE)
    assert table, title
    return [
        name for row in table[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]


def plain(names: Iterable[str]) -> set[str]:
    return {name.lower().replace("-", "") for name in names}


@pytest.mark.parametrize("title", LISTS)
def test_a_table_lists_what_the_registry_knows(title: str) -> None:
    page, names = LISTS[title]
    assert sorted(first_column(page, title)) == sorted(names)


def test_platforms_are_those_of_the_kernels() -> None:
    found = re.search(
        r"x86-64 with ([\w, -]+), and .*compiled kernels: ([\w, ]+) \|", read("README.md")
    )
    assert found
    levels = {*_native.ALLOWED} - {"portable", "off"}
    assert plain(re.split(", | or ", found[1])) == levels
    assert tuple(found[2].split(", ")) == KERNEL_PRECISIONS


def test_kinds_of_text_are_those_of_the_benchmark() -> None:
    header = next(
        line for line in read("docs/methods.md").splitlines() if line.startswith("| T = 0")
    )
    assert [cell.strip() for cell in header.split("|")[2:-1]] == [*CATEGORIES]
    assert len(CATEGORIES) == 6
    assert "on six kinds of text" in " ".join(read("README.md").split())


def test_readme_is_a_landing_page() -> None:
    assert read("README.md").count("\n") < 110, "one screen and a half; the rest belongs to docs/"


def test_the_documents_are_short() -> None:
    """Words are separated by white space; blocks of code count."""
    pages = {"CHANGELOG.md", *PAGES} - {"zoo/README.md", *GENERATED}
    words = {page: len(read(page).split()) for page in pages}
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda each: -each[1])


def test_every_page_is_on_the_site() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    listed = {page for section in config["nav"] for page in _pages_in(section)}
    built = {"docs/notebooks/speculative_decoding.md", "docs/api.md"}
    assert listed - built == {*PAGES, "CHANGELOG.md"}


def _pages_in(section: dict[str, Any]) -> Iterator[str]:
    for entry in section.values():
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry:
                yield from _pages_in(inner)


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
    assert not re.findall(r"/(?:home|root|Users|tmp|var|work)\b|C:\\\\", said)


def script(name: str) -> ModuleType:
    source = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return module


def test_the_structure_is_that_of_the_code() -> None:
    """`python docs/structure.py` writes it anew."""
    page = read("docs/structure.md")
    assert script("structure").render(page) == page


def test_the_families_are_those_of_the_code() -> None:
    """`python docs/families.py` writes them anew."""
    page = read("docs/models.md")
    assert script("families").render(page) == page


def test_the_chart_is_that_of_the_figures() -> None:
    """`python docs/chart.py` draws it anew."""
    assert script("chart").render() == read("docs/chart.svg")


def test_the_page_of_names_has_all_public_ones() -> None:
    page = script("api").render()
    for name in set(forerun.__all__) - {"__version__"}:
        assert re.search(rf"^#+ .*\b{name}\b", page, re.MULTILINE), name
