"""README's figures are those of the pages that measured them, as docs/figures.toml lists them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any

import pytest

from forerun.policies.auto import AutoOptions
from forerun.policies.budget import TUITION
from tests.helpers.documents import ROOT, read

FIGURES: list[dict[str, Any]] = tomllib.loads(read("docs/figures.toml"))["figures"]
BOUNDS = "[5 % of a first request's time and 2 % of all time]"
every_figure = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["readme"])

_BLOCK = re.compile(r"^```.*?^```$|^\|.*?$|!?\[[^\]]*\]\(docs/\S+\.svg\)", re.DOTALL | re.MULTILINE)
# Ratios, shares and counts; sizes, versions and lengths are no measurements.
_FIGURE = re.compile(r"(?<![\w.,])\d[\d.,]*(?: to \d[\d.]*)? [×%]|\b\d{3}\b(?! M)|\b\d,\d{3}\b")
_NUMBER = re.compile(r"\d[\d.]*\d|\d")


def folded(text: str) -> str:
    """Text without its line breaks and the commas in its numbers."""
    return re.sub(r"(?<=\d),(?=\d{3})", "", " ".join(text.replace("\\\n", " ").split()))


def value_of(measured: str) -> float:
    """A number, or a quotient of two."""
    above, _, below = measured.partition(" / ")
    return float(above) / float(below or 1)


@every_figure
def test_a_figure_is_that_of_its_page(figure: dict[str, Any]) -> None:
    page, quote = folded(read(figure["page"])), folded(figure["quote"])
    assert quote in page
    assert folded(figure["command"]) in page
    for measured in figure["measured"]:
        assert set(_NUMBER.findall(measured)) <= set(_NUMBER.findall(quote)), measured


@every_figure
def test_readme_rounds_it(figure: dict[str, Any]) -> None:
    assert folded(figure["readme"]) in folded(read("README.md"))
    shown = _NUMBER.findall(folded(figure["readme"]).replace("SmolLM2", ""))
    assert len(shown) == len(figure["measured"])
    for text, measured in zip(shown, figure["measured"], strict=True):
        digits = len(text.partition(".")[2])
        assert f"{value_of(measured):.{digits}f}" == text


@every_figure
def test_a_figure_names_its_machine_and_commit(figure: dict[str, Any]) -> None:
    assert f"*{figure['machine']}*:" in read("docs/benchmarks.md")
    if not (ROOT / ".git").exists():
        assert re.fullmatch("[0-9a-f]{7,40}", figure["commit"])
        return
    command = ["git", "cat-file", "-e", f"{figure['commit']}^{{commit}}"]
    shallow = (ROOT / ".git" / "shallow").exists()
    assert shallow or not subprocess.run(command, cwd=ROOT, check=False).returncode


def test_every_figure_of_readme_is_listed() -> None:
    text = folded(_BLOCK.sub("", read("README.md")))
    listed = [folded(words) for words in (BOUNDS, *(figure["readme"] for figure in FIGURES))]
    for words in listed:
        text = text.replace(words, "")
    assert not _FIGURE.findall(text)


def test_the_bounds_of_loss_are_those_of_the_policy() -> None:
    lost = AutoOptions().lost_time
    assert (
        f"[{TUITION * 100:g} % of a first request's time and {lost * 100:g} % of all time]"
        == BOUNDS
    )
    assert BOUNDS in folded(read("README.md"))
    choosing = f"{TUITION * 100:g} % of a first request's time, is credited with {lost * 100:g} % of all time"
    assert choosing in folded(read("docs/choosing.md"))
