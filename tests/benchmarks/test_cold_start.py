"""The benchmark of policy auto where nothing was learned."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import cold_homes
from benchmarks.cold_start import Size, main, table_row, works
from benchmarks.stages import Measured, best_length, stages
from forerun.files import CACHE_VARIABLE
from forerun.models.checkpoint import loading_once
from tests.helpers.command_line import Cli

MEASURED = [
    Measured(1, 0.8, {2: 1.1, 4: 1.2}),
    Measured(1, 1.0, {2: 1.3, 4: 1.5}),
    Measured(5, 1.2, {2: 1.3, 4: 1.4}),
]
TINY = ("--models", "zoo", "--only", "zoo bf16, useless draft, T = 1", "--max-tokens", "8")


def test_stages_beside_the_length_that_is_best_over_all() -> None:
    length = best_length(MEASURED)
    assert length == 4
    found = stages(MEASURED, length)
    first = found["first"]
    assert (first.auto, first.least, first.most, first.pairs) == (0.9, 0.8, 1.0, 2)
    assert first.share == pytest.approx(0.9 / 1.35)
    assert found["fifth"] == found["5 to 12"]


def test_plain_decoding_is_the_best_where_no_length_pays() -> None:
    measured = [Measured(1, 0.95, {2: 0.9, 4: 0.7})]
    assert best_length(measured) == 0
    assert stages(measured, 0)["first"].share == 0.95


def test_rows_of_the_table() -> None:
    row = {"way": "engine", "work": "zoo", "best_length": 4}
    assert table_row({**row, "stages": stages(MEASURED[:2], 4)}) == (
        "| engine | zoo | 4 tokens | 0.90 (0.80–1.00; 2) | 1.35 | 66.7% | – | – | – | – | – | – |"
    )
    assert "| plain |" in table_row({**row, "best_length": 0, "stages": {}})


def test_each_prompt_is_the_first_of_a_row() -> None:
    assert list(Size(3, 2, 4).rows()) == [[0, 1], [1, 2], [2, 0, 1, 2]]


def test_works_have_a_name_each() -> None:
    names = [work.name for work in works(["zoo", "smollm2"], [128, 8])]
    assert len(names) == len(set(names)) == 28
    assert "smollm2 auto, default draft, T = 0, 8 tokens" in names


def test_a_home_is_empty_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    before = dict(os.environ)
    with cold_homes.empty_home() as home:
        assert Path.home() == home
        assert not any(home.iterdir())
        assert Path(os.environ[CACHE_VARIABLE]).is_relative_to(home)
    assert dict(os.environ) == before
    assert not home.exists()


def test_a_command_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess[str]([], 2, "", "no such model")
    monkeypatch.setattr(cold_homes, "_forerun", lambda arguments: failed)
    with pytest.raises(RuntimeError, match="no such model"):
        cold_homes.compare_by_command("x", {"model": "y"})


@pytest.mark.zoo
def test_requests_to_one_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "rows.json"
    size = ("--prompts", "1", "--later", "5", "--lengths", "2")
    with loading_once():
        main([*TINY, *size, "--ways", "engine", "--json", str(report)])
    assert capsys.readouterr().out.count("\n") == 3
    [row] = json.loads(report.read_text())
    assert [entry["place"] for entry in row["measured"]] == [1, 2, 3, 4, 5]
    assert row["stages"]["first"]["pairs"] == 1
    assert row["stages"]["fifth"]["share"] > 0.0


@pytest.mark.zoo
def test_commands_in_empty_homes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; each row of requests has a home of its own."""
    homes: list[str] = []

    def forerun(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        homes.append(os.environ["HOME"])
        result = Cli("", "").run(*arguments)
        return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, "")

    monkeypatch.setattr(cold_homes, "_forerun", forerun)
    with loading_once():
        main([*TINY, "--prompts", "2", "--later", "2", "--lengths", "2", "--ways", "command"])
    assert "| command | zoo bf16, useless draft" in capsys.readouterr().out
    # Of each prompt with a fixed length, of the first request alone, and of two in a row.
    assert [homes.count(home) for home in dict.fromkeys(homes)] == [1, 1, 1, 2]
