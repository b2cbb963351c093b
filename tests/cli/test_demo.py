"""`forerun demo`, and the picture of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from forerun.cli.demo import BEGINNINGS
from tests.helpers.command_line import Cli
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.real_model import needs_smollm2

ROOT = Path(__file__).parents[2]


def test_answers_come_first_then_a_line_for_each_and_one_for_all(cli: Cli) -> None:
    result = cli.run("demo", "-m", "zoo", "--max-tokens", "6")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()[-4:]
    assert [line.split("  ")[0] for line in lines] == [*BEGINNINGS, "all"]
    assert all(line.endswith("x, same tokens") for line in lines)
    assert all(f"{kind}: {text}" in result.stderr for kind, text in BEGINNINGS.items())


def test_as_an_object(cli: Cli) -> None:
    result = cli.run("demo", "-m", "zoo", "--max-tokens", "6", "--json")
    content = json.loads(result.stdout)
    assert BEGINNINGS["a loop"] not in result.stderr
    assert [answer["kind"] for answer in content["answers"]] == list(BEGINNINGS)
    assert content["identical"]
    assert all(answer["identical"] and answer["text"] for answer in content["answers"])
    assert all(answer["stats"]["num_emitted_tokens"] == 6 for answer in content["answers"])
    assert content["tokens_per_second"] > 0 < content["plain_tokens_per_second"]


def test_of_a_model_that_does_not_exist_nothing_is_said_but_that(cli: Cli) -> None:
    result = cli.run("demo", "-m", "./no-such-model")
    assert result.exit_code == 2
    assert result.stderr.startswith("forerun: error: there is no directory ./no-such-model")


@needs_smollm2
@needs_kernels
def test_the_picture_is_what_the_demo_shows() -> None:
    """Texts, questions and what is accepted of drafts are those of the picture of README."""
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    drawn = picture.facts_of(picture.PICTURE.read_text("utf-8"))
    assert picture.facts() == drawn, "draw it again: python docs/picture.py"
    shown = picture.PICTURE.read_text("utf-8").replace("&#160;", " ")
    for answer in drawn:
        assert answer["text"].split(".")[0][:40] in shown
