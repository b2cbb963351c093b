"""`forerun bench kernels`: the object of --json, the table, and every refusal."""

from __future__ import annotations

import json

import pytest

from forerun import _native
from tests.helpers.command_line import Cli
from tests.helpers.refusals import refused

pytestmark = [
    pytest.mark.skipif(not _native.AVAILABLE, reason="no compiled kernels"),
    pytest.mark.zoo,
]
SMALL = ("--models", "zoo-draft", "--precisions", "int8", "--rounds", "1", "--threads", "1")
FEW = (*SMALL, "--tokens", "1,4", "--contexts", "16")
ROW = {
    "model",
    "precision",
    "n",
    "context",
    "bytes",
    "milliseconds",
    "best_milliseconds",
    "gigabytes_per_second",
    "ratio_to_one",
    "share_of_bandwidth",
    "share_of_peak",
    "from_memory",
}


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command asks for is forgotten afterwards."""
    monkeypatch.setattr("forerun.models.cpu.threads._asked", [])


def test_object(cli: Cli) -> None:
    result = cli.run("bench", "kernels", *FEW, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == "forerun: measuring zoo-draft int8\n"
    content = json.loads(result.stdout)
    assert set(content) == {
        "schema_version",
        "versions",
        "hardware",
        "machine",
        "rows",
        "prefill",
    }
    assert content["hardware"]["threads"] == 1
    assert content["machine"]["bandwidth_gigabytes_per_second"] > 0
    assert [(row["n"], row["context"]) for row in content["rows"]] == [(1, 16), (4, 16)]
    assert all(set(row) == ROW for row in content["rows"])
    assert content["prefill"][0]["tokens"] == 512


def test_table(cli: Cli) -> None:
    result = cli.run("bench", "kernels", *FEW)
    assert result.exit_code == 0, result.output
    for word in ("streaming reads", "zoo-draft int8", "GB/s", "Prefill of 512 tokens", "cache"):
        assert word in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("kernel",), ["benchmark 'kernel'", "'kernels'"]),
        ((), ["WHAT"]),
        (("kernels", "--models", "lama-110m"), ["'llama-110m'"]),
        (("kernels", "--models", ""), ["--models", "not a list of names"]),
        (("kernels", "--precisions", "int8,int9"), ["'int9'", "'int8'"]),
        (("kernels", "--tokens", "0"), ["--tokens", "[1, 512]"]),
        (("kernels", "--tokens", "some"), ["--tokens", "not an integer"]),
        (("kernels", "--contexts", "-1"), ["--contexts"]),
        (("kernels", "--rounds", "0"), ["rounds is 0", "[1, 10000]"]),
        (("kernels", "--modls", "zoo"), ["'--models'"]),
    ],
)
def test_wrong_use(cli: Cli, options: tuple[str, ...], words: list[str]) -> None:
    refused(cli.run("bench", *options), *words)


def test_without_the_kernels(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "AVAILABLE", False)
    monkeypatch.setattr(_native, "REASON", "no compiler")
    refused(cli.run("bench", "kernels"), "no compiler")
