"""`forerun roofline`: words, tables, the object of --json, the plot, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun import _native
from tests.helpers.command_line import Cli
from tests.helpers.refusals import refused

needs_kernels = pytest.mark.skipif(not _native.AVAILABLE, reason="no compiled kernels")
FEW = ("--rounds", "1", "--threads", "1", "--tokens", "1,4", "--contexts", "16")
COMMON = {
    *("schema_version", "versions", "hardware", "mode", "settings", "answers", "machine", "limits"),
    *("peaks_flops", "free", "draft_seconds_in_round", "rows"),
}
MEASURED = {"last_level_cache_bytes"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command asks for is forgotten afterwards, and a small cache takes no time to read."""
    monkeypatch.setattr("forerun.models.cpu.threads._asked", [])
    monkeypatch.setattr("forerun.bench.forwards.last_level_cache", lambda: 1 << 21)


def content(cli: Cli, *options: str) -> dict[str, Any]:
    """The object of --json, which is all that stands on standard output."""
    result = cli.run("roofline", *options, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@needs_kernels
def test_object(cli: Cli) -> None:
    found = content(cli, "-m", cli.target, "--draft-model", cli.draft, *FEW)
    assert set(found) == COMMON | MEASURED
    assert found["schema_version"] == 1
    assert found["mode"] == "measured"
    assert found["hardware"]["threads"] == 1
    assert found["settings"]["tokens"] == [1, 4]
    assert "hardware" not in found["settings"]
    keys = [(row["role"], row["n"], row["context"]) for row in found["rows"]]
    assert keys == [("target", 1, 16), ("target", 4, 16), ("draft", 1, 16)]
    assert found["draft_seconds_in_round"] > 0


@needs_kernels
def test_words_and_tables(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "roof.svg"
    result = cli.run("roofline", "-m", cli.target, *FEW, "--plot", str(file))
    assert result.exit_code == 0, result.output
    words, _, tables = result.stdout.partition("\n\n")
    for word in ("FLOP a byte", "Checking is as good as free", "at a context of 16"):
        assert word in words
    for word in ("verify 4", "measured ms", "of reads"):
        assert word in tables
    assert b"<svg" in file.read_bytes()


@needs_kernels
def test_on_torch_too(cli: Cli) -> None:
    found = content(cli, "-m", cli.target, "--backend", "torch", "--dtype", "fp32", *FEW)
    assert {row["precision"] for row in found["rows"]} == {"fp32"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tokens", "0"), ["--tokens", "[1, 512]"]),
        (("--tokens", "some"), ["--tokens", "not an integer"]),
        (("--contexts", "-1"), ["--contexts"]),
        (("--rounds", "0"), ["rounds is 0", "[1, 10000]"]),
        (("--modl", "zoo"), ["'--model'"]),
        (("--model", "/no/such"), ["/no/such", "no directory"]),
        (("--plot", "roof.gif"), ["roof.gif", ".png"]),
        (("--plot", "/no/such/roof.png"), ["--plot", "no directory /no/such"]),
        (("--dtype", "int9"), ["int9"]),
    ],
)
def test_wrong_use(cli: Cli, options: tuple[str, ...], words: list[str]) -> None:
    refused(cli.run("roofline", *options), *words)


def test_without_the_kernels(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "AVAILABLE", False)
    monkeypatch.setattr(_native, "REASON", "no compiler")
    refused(cli.run("roofline", "-m", cli.target), "no compiler")
