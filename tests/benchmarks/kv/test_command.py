"""`python -m benchmarks.kv`: the object of --json, the table, the plot, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from benchmarks.kv.__main__ import NAME, application
from forerun import _native
from tests.helpers.cli_pair import save_pair
from tests.helpers.refusals import refused

FEW = (
    *(
        "--contexts",
        "256,400",
        "--methods",
        "streaming_llm,h2o",
        "--ratios",
        "0.5",
        "--needles",
        "1",
    ),
    *("--depths", "0.2,0.8", "--scored-tokens", "12", "--timed-tokens", "4", "--kv-recent", "16"),
    *("--threads", "1", "--kv-dtypes", "bf16"),
)


def invoke(*options: str) -> Result:
    settings: dict[str, Any] = {"prog_name": "python -m", "catch_exceptions": False}
    return CliRunner().invoke(application, [NAME, *options], **settings)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_pair(tmp_path_factory.mktemp("models"))[0]


def run(target: str, *options: str) -> Result:
    return invoke("-m", target, *FEW, *options)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text("def add(a, b):\n    return a + b\n" * 200, encoding="utf-8")
    return str(path)


def test_rows_are_settings_by_context(target: str, text: str) -> None:
    result = run(target, "--text", text, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["schema_version"], found["mode"]) == (1, "kv")
    assert found["settings"]["contexts"] == [256, 400]
    labels = ["full", "kv_dtype bf16", "streaming_llm ratio 0.5", "h2o ratio 0.5"]
    rows = found["rows"]
    assert [(row["setting"], row["context"]) for row in rows] == [
        (label, context) for context in (256, 400) for label in labels
    ]
    for row in rows:
        full = row["setting"] == "full"
        # A precision is part of the model, as that of weights is.
        evicts = "ratio" in row["setting"]
        own = "bitwise" if _native.AVAILABLE else "distributional"
        assert row["exactness"] == ("approximate" if evicts else own)
        assert row["perplexity_low"] <= row["perplexity_ratio"] <= row["perplexity_high"]
        assert list(row["found_by_depth"]) == ["0.2", "0.8"]
        assert 0 < row["memory_share"] <= 1
        if full:
            assert (row["perplexity_ratio"], row["memory_share"]) == (1.0, 1.0)
        elif evicts:
            assert row["memory_share"] == pytest.approx(
                (row["context"] / 2 + 4) / (row["context"] + 3), abs=0.01
            )
        assert min(row["tokens_per_second"], row["read_seconds"], row["speed_ratio"]) > 0


def test_the_table_marks_what_is_approximate(target: str, text: str, tmp_path: Path) -> None:
    plot = tmp_path / "kv.svg"
    result = run(target, "--text", text, "--plot", str(plot))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert any("streaming_llm ratio 0.5~" in line for line in lines)
    assert not any("full~" in line for line in lines)
    assert "~ approximate: changes the output" in result.stderr
    assert "The cache at a context of 400 tokens" in result.stdout
    root = ElementTree.parse(plot).getroot()
    axes = [one for one in root.iter() if one.get("id", "").startswith("axes_")]
    curves = [one for one in root.iter() if one.get("id", "").startswith("line2d_")]
    assert len(curves) > len(axes) > 1


def test_budgets_alone_and_the_prose_that_comes_with_python(target: str) -> None:
    usual = ("--needles", "1", "--depths", "0.5", "--scored-tokens", "8", "--timed-tokens", "4")
    sizes = ("--ratios", "0.5", "--budgets", "64", "--methods", "snapkv", "--contexts", "300")
    keep = ("--kv-recent", "16", "--threads", "1", "--kv-dtypes", "fp32")
    result = invoke("-m", target, *usual, *sizes, *keep, "--json")
    assert result.exit_code == 0, result.output
    labels = [row["setting"] for row in json.loads(result.stdout)["rows"]]
    assert labels == ["full", "kv_dtype fp32", "snapkv ratio 0.5", "snapkv budget 64"]


def test_an_interruption_shows_what_there_is(
    target: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.kv.measure import _Run

    usual, count = _Run.figures, 0

    def interrupted(self: Any, full: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return usual(self, full)

    monkeypatch.setattr(_Run, "figures", interrupted)
    result = run(target, "--text", text, "--json")
    assert result.exit_code == 130
    assert [row["setting"] for row in json.loads(result.stdout)["rows"]] == [
        "full",
        "kv_dtype bf16",
    ]
    assert "interrupted" in result.stderr


def test_wrong_use_is_refused(target: str, tmp_path: Path) -> None:
    refused(run(target, "--methods", "h3o"), "unknown kv_method 'h3o'", "Did you mean 'h2o'")
    assert "kv_dtype 'int5'" in run(target, "--kv-dtypes", "int5").stderr
    refused(run(target, "--budgets", "16"), "kv_budget is 16", "4 sinks with 16 recent")
    refused(run(target, "--contexts", "20000"), "--contexts go up to 20000", "16384")
    refused(run(target, "--ratios", "0"), "ratios")
    refused(run(target, "--timed-tokens", "13"), "timed-tokens is 13 of 12")
    (tmp_path / "short.txt").write_text("two words")
    result = run(target, "--text", str(tmp_path / "short.txt"))
    assert result.exit_code == 2
    assert "Give a longer one with --text" in result.stderr
    result = run(target, "--needles", "9")
    assert result.exit_code == 2
    assert "needles take" in result.stderr


def test_refusals_are_those_of_forerun(target: str) -> None:
    refused(run(target, "--polt", "chart.png"), "No such option '--polt'", "'--plot'")
    refused(run(target, "--plot", "chart.txt"), ".png, .svg, .pdf")
    refused(run(target, "--text", "absent.txt"), "text absent.txt cannot be read")
    assert "python -m benchmarks.kv [OPTIONS]" in invoke("--help").stdout
