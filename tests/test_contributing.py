"""What CONTRIBUTING.md and docs/own-drafter.md show of options, methods and families works as it stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import forerun
from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError
from tests.helpers.documents import blocks_of
from tests.helpers.documents import run as snippets
from tests.helpers.other_package import POINTS, Point
from tests.helpers.tiny_models import LLAMA_LIKE, random_model

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(language: str, heading: str) -> str:
    """The block of code in the section under a heading."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    [code] = re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return str(code)


def changed(tmp_path: Path, heading: str, files: int = 1) -> Path:
    """A copy of the package with the change that is shown under a heading, in so many files."""
    copied = tmp_path / "src" / "forerun"
    # With what is compiled of it, but not what is being written there now.
    shutil.copytree(
        ROOT / "src" / "forerun", copied, ignore=shutil.ignore_patterns("*.so", "*.pyc.*")
    )
    change = block("diff", heading)
    assert change.count("+++ ") == files
    subprocess.run(["git", "apply", "-"], input=change, text=True, cwd=tmp_path, check=True)
    return tmp_path / "src"


def run(source: Path, *arguments: str) -> str:
    """What Python prints over the changed package.

    It runs without `site` (-S), whose hook for an editable install would find the unchanged package.
    """
    path = os.pathsep.join([str(source), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "FORERUN_PROMPT_LOOKUP_POSITIONS": "65"}
    program = [sys.executable, "-S", *arguments]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_an_option_of_a_method_is_one_field(tmp_path: Path) -> None:
    program = (changed(tmp_path, "Adding an option to a method"), "-m", "forerun.cli.main")
    text = run(*program, "generate", "--help-all")
    section = text.partition("Method ngram:")[2].partition("Method ")[0]
    assert "--prompt-lookup-positions INTEGER" in section
    assert "Positions that a tree goes on from.  [default: 8]" in " ".join(section.split()).replace(
        ". [", ".  ["
    )
    refused = run(*program, "generate", "--prompt", "a", "--method", "ngram")
    assert "--prompt-lookup-positions is 65; it must be an integer in [1, 64]." in refused


def test_a_command_is_one_file_and_its_row(tmp_path: Path) -> None:
    source = changed(tmp_path, "Adding a command", files=2)
    assert "Count the tokens of a text." in run(source, "-m", "forerun.cli.main", "--help")
    text = run(source, "-m", "forerun.cli.main", "tokens", "-m", "zoo", "def f(x):")
    assert re.fullmatch(r"\d+ tokens", text.strip())
    assert "--threads INTEGER" in run(source, "-m", "forerun.cli.main", "tokens", "--help")


def test_an_option_of_a_command_is_one_file(tmp_path: Path) -> None:
    program = (changed(tmp_path, "Adding an option to a command"), "-m", "forerun.cli.main")
    assert "Pairs of runs of each question.  [default: 3]" in run(*program, "demo", "--help")
    assert "--pairs is 0; it must be an integer in [1, 1000]" in run(
        *program, "demo", "--pairs", "0"
    )


CHART = """
from forerun.bench.roofline.report import report_of
from forerun.bench.roofline.report import Forward, Roofline

rows = [
    Forward("target", "m", "bf16", n, 16, 1e9, 1e9 * n, n, 1e9, 1e12, "memory", *[1.0] * 6)
    for n in (1, 4)
]
print(*(chart.title for chart in report_of(Roofline("here", rows)).charts), sep=", ")
"""


def test_a_chart_is_one_file(tmp_path: Path) -> None:
    text = run(changed(tmp_path, "Adding a chart"), "-c", CHART)
    assert text.strip() == "m (bf16) on here, Cost of checking"


def test_a_method_of_another_package_is_one_module(
    other_package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of docs/own-drafter.md; `tests/test_snippets.py` runs the rest of the page."""
    page = "docs/own-drafter.md"
    drafter: Any = snippets(page, blocks_of(page, "python")[:1])["PhraseDrafter"]
    monkeypatch.setitem(POINTS, "forerun.drafters", [Point("phrases", drafter)])
    config = SpeculativeConfig(method="phrases", options={"phrase_start": 3})
    assert config.read(drafter.options).phrase_start == 3
    with pytest.raises(ConfigError, match=r"phrase_start is 0; it must be an integer in \[1, 64\]"):
        SpeculativeConfig(method="phrases", options={"phrase_start": 0})
    with pytest.raises(ConfigError, match="needs phrase_file"):
        forerun.load("zoo", SpeculativeConfig(method="phrases"))


GREEDY = """
import sys
from forerun import Engine, SamplingParams
from forerun.drafters.ngram import NgramDrafter
from forerun.models import Transformer, load_model

model = load_model(sys.argv[1], backend="torch")
assert isinstance(model, Transformer)
params = SamplingParams(temperature=0, max_tokens=24)
print(*Engine(model, NgramDrafter(1, 3)).generate([[5, 7, 5, 7, 5]], params)[0].token_ids)
"""


def test_a_family_is_one_entry(tmp_path: Path) -> None:
    """Its greedy text is that of transformers."""
    config = AutoConfig.for_model("gemma", **LLAMA_LIKE, head_dim=6, eos_token_id=None)
    model = random_model(config)
    model.save_pretrained(tmp_path / "model")
    source = changed(tmp_path, "Adding a model family")
    expected = model.generate(torch.tensor([[5, 7, 5, 7, 5]]), max_new_tokens=24, do_sample=False)
    printed = run(source, "-c", GREEDY, str(tmp_path / "model"))
    assert printed.split() == [str(token) for token in expected[0, 5:].tolist()]
