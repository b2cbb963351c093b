"""What CONTRIBUTING.md shows of new options and methods works as it stands there."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError
from forerun.testing import ToyModel, check_drafter
from tests.helpers.other_package import POINTS, Point

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A copy of the package with the change of the document."""
    copied = tmp_path / "src" / "forerun"
    shutil.copytree(
        ROOT / "src" / "forerun", copied, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    change = block("diff")
    assert change.count("+++ ") == 1, "one file"
    subprocess.run(["git", "apply", "-"], input=change, text=True, cwd=tmp_path, check=True)
    return tmp_path / "src"


def run(source: Path, *arguments: str) -> str:
    """Without site (-S), whose hook for an editable install would find the unchanged package."""
    path = os.pathsep.join([str(source), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "FORERUN_PROMPT_LOOKUP_PLACES": "65"}
    program = [sys.executable, "-S", "-m", "forerun.cli.main", *arguments]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_an_option_of_a_method_is_one_field(changed: Path) -> None:
    text = run(changed, "generate", "--help")
    section = text.partition("Method ngram:")[2].partition("Method ")[0]
    assert "--prompt-lookup-places INTEGER" in section
    assert "Places that a tree goes on from.  [default: 8]" in " ".join(section.split()).replace(
        ". [", ".  ["
    )
    refused = run(changed, "generate", "--prompt", "a", "--method", "ngram")
    assert "prompt_lookup_places is 65; it must be an integer in [1, 64]." in refused


def test_a_method_of_another_package_is_one_module(
    other_package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parrot.py").write_text(block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    parrot: Any = importlib.import_module("parrot").Parrot
    monkeypatch.setitem(POINTS, "forerun.drafters", [Point("parrot", parrot)])
    config = SpeculativeConfig(method="parrot", options={"parrot_memory": 2})
    assert config.read(parrot.options).parrot_memory == 2
    with pytest.raises(
        ConfigError, match=r"parrot_memory is 0; it must be an integer in \[1, 64\]"
    ):
        SpeculativeConfig(method="parrot", options={"parrot_memory": 0})
    assert check_drafter(parrot(2), ToyModel(3)).cases > 0
