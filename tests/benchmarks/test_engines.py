"""Engines in processes of their own, rounds and the report count and pair correctly."""

from __future__ import annotations

import io
import json
import subprocess
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.checkpoints import write_checkpoint
from benchmarks.groups import drafting
from benchmarks.groups.report import Figure, Setting, local, paired_ratio
from benchmarks.host_time import Row
from benchmarks.rounds import alone, measure_rounds
from benchmarks.shapes import build
from forerun import _native
from forerun.bench.peers import worker
from forerun.core import Drawing
from forerun.errors import ConfigError
from tests.helpers.forwards import run

pytestmark = [
    pytest.mark.skipif(not _native.AVAILABLE, reason="no compiled kernels"),
    pytest.mark.usefixtures("tiny_shapes"),
]


@pytest.mark.parametrize("drawing", [Drawing.GREEDY, Drawing.SAMPLED])
def test_rounds(drawing: Drawing) -> None:
    target, draft = build("tiny", "bf16"), build("tiny-tied", "int8")
    medians = measure_rounds(target, draft, 3, 16, 2, drawing)
    assert set(medians) == {"draft", "target"}
    assert min(medians.values()) > 0
    assert len(alone(draft, 8, 16, 3)) == 3


def test_figures() -> None:
    reached = Figure(1, "a", 1.5, 1.2)
    assert reached.reached
    assert "| yes |" in reached.as_markdown()
    assert Figure(1, "a", 1.5, 1.2, at_most=True).reached is False
    assert Figure(1, "a", 1.5).as_dict()["reached"] is None
    ratio, around = paired_ratio([1.0, 2.0, 4.0], [2.0, 6.0, 4.0])
    assert ratio == 2.0
    assert around.endswith("of 3")


def test_checkpoints_hold_what_the_kernels_run(tmp_path: Path) -> None:
    directory = write_checkpoint("tiny", tmp_path / "tiny")
    models = (build("tiny", "fp32"), build(str(directory), "fp32"))
    logits = [run(model, model.new_cache(1, 3), [[1, 2, 3]]).logits for model in models]
    assert torch.equal(logits[0], logits[1])
    before = (directory / "model.safetensors").stat().st_mtime_ns
    write_checkpoint("tiny", directory)
    assert (directory / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_an_engine_in_a_process_of_its_own(tmp_path: Path) -> None:
    directory = str(write_checkpoint("tiny", tmp_path / "tiny"))
    setting = Setting(1, True, tmp_path)
    with setting.ours(directory, "bf16", directory) as engine:
        assert engine.call("describe")["precision"] == "bf16"
        assert engine.call("forward_seconds", n=2, context=8) > 0
        plain = engine.call("generate", prompt_ids=[1, 2, 3], num_tokens=6)
        drafted = engine.call(
            "generate", prompt_ids=[1, 2, 3], num_tokens=6, num_speculative_tokens=2
        )
        assert plain[0] == drafted[0]
        assert drafted[2]["num_drafts"] > 0
    with pytest.raises(ConfigError, match="llama-110m"):
        local("forerun", "benchmarks.ours:Ours", model="none", precision="bf16", threads=1)
    assert not setting.peers(["no-such"], directory, "bf16")
    assert "unknown peer" in setting.notes[0]


def test_a_peer_that_ends_with_its_first_tokens_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Peer:
        def __init__(self, name: str) -> None:
            self.name, self.closed = name, False

        def call(self, *_: str, **__: Any) -> None:
            if self.name == "ends":
                raise ConfigError("it ended")

        def close(self) -> None:
            self.closed = True

    loaded = {name: Peer(name) for name in ("ends", "decodes")}
    monkeypatch.setattr(Setting, "peer", lambda _, name, *__: loaded[name])
    setting = Setting(1, True, tmp_path)
    assert list(setting.peers(loaded, "model", "int8")) == ["decodes"]
    assert [peer.closed for peer in loaded.values()] == [True, False]
    assert setting.notes == ["without ends in int8: it ended"]


MATRICES = {"maker": "benchmarks.matrices:Matrices", "options": {"threads": 1}}


def test_the_worker_answers_line_by_line(tmp_path: Path) -> None:
    requests = [
        {"call": "load", "arguments": MATRICES},
        {"call": "matrix_product", "arguments": {"precision": "int4"}},
    ]
    answers = io.StringIO()
    worker.serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [{"value": None}] * 2
    assert threading.active_count() < 10


def test_figures_of_the_host_are_read_from_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row(4096, "greedy", 40.0, 12.0, 3.1), Row(4096, "plain", 9.0, 0.0, 1.0)]
    output = json.dumps([asdict(row) for row in rows])
    done = subprocess.CompletedProcess([], 0, stdout=output, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    figures = list(drafting.host_figures(Setting(1, True, tmp_path)))
    assert [(figure.value, figure.reached) for figure in figures] == [(40.0, True), (9.0, None)]
    assert figures[0].detail.startswith("12 us")
