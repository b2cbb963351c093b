"""Engines that a proof starts: peers that answer by token ids, and llama-server."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.engine.config import SpeculativeConfig
from forerun.engine.options import ModelOptions
from forerun.errors import ConfigError, EndpointError
from forerun.params import SamplingParams
from forerun.placement import Placement
from forerun.proof.effort import Effort
from forerun.proof.outside import engines, run
from forerun.proof.outside.client import Endpoint, RefusedError
from forerun.proof.outside.engines import PeerSubject, llama_server
from forerun.proof.outside.greedy import DEFECT, UNCLEAR, GreedyComparison
from forerun.proof.outside.options import Outside
from forerun.proof.outside.reference import Reference
from forerun.proof.outside.report import verdict
from forerun.proof.outside.run import Subjects, prove_outside, prove_server
from forerun.proof.outside.sampled import on_against_off
from forerun.proof.outside.subject import ReplyRecord
from forerun.proof.request import ProveRequest
from tests.helpers.plants import plain_engine
from tests.helpers.scripted_server import Script, scripted

PROMPTS = ["w1 w2 w1 w2 w3 w4"]


class MadeEngine:
    """A peer's process that answers one token, another one where it speculates."""

    def __init__(self, logprobs: bool) -> None:
        self.logprobs, self.seeds = logprobs, list[int]()

    def call(self, name: str, **arguments: Any) -> Any:
        if name == "describe":
            return {"name": "made", "version": "1"}
        self.seeds.append(arguments["seed"])
        token = 7 if arguments["num_speculative_tokens"] else 8
        found: dict[str, Any] = {"tokens": [token] * arguments["num_tokens"]}
        found["drafted"] = 2 if arguments["num_speculative_tokens"] else 0
        return found | ({"logprobs": [-0.5] * arguments["num_tokens"]} if self.logprobs else {})


def subjects(logprobs: bool) -> tuple[PeerSubject, PeerSubject]:
    engine: Any = MadeEngine(logprobs)
    reference = Reference(plain_engine())
    return PeerSubject("on", engine, reference, 4, 0), PeerSubject("off", engine, reference, 0, 100)


@pytest.mark.parametrize(("logprobs", "verdict"), [(True, DEFECT), (False, UNCLEAR)])
def test_a_difference_is_a_defect_where_the_peer_tells_log_probabilities(
    logprobs: bool, verdict: str
) -> None:
    result = GreedyComparison(*subjects(logprobs), PROMPTS, 4).run(600.0)
    assert {found.verdict for found in result.divergences} == {verdict}
    skipped = {one.name: one.skipped for one in result.situations}
    assert skipped["16 at once"] == "it answers one request at a time"
    assert skipped["penalties"] == "not served (501)"


def test_sampling_that_a_peer_does_not_know_is_an_item_of_the_report() -> None:
    on, off = subjects(logprobs=True)
    both = Subjects(on, off, on.reference)
    effort = Effort(num_tokens=16, output_tokens=4)
    proof = prove_outside(both, PROMPTS, SamplingParams(min_p=0.1), effort)
    assert proof.greedy is not None
    assert proof.rows is None
    assert proof.unseen == ["sampled answers (on is not asked for min_p here)"]
    assert "Not seen: sampled answers" in verdict(proof)


def test_answers_on_and_off_are_as_many_as_the_tokens_take_however_many_prompts_there_are() -> None:
    on, off = subjects(logprobs=False)
    outputs = Effort(num_tokens=64, output_tokens=4).outputs(SamplingParams())
    assert on_against_off(on, off, PROMPTS * 50, outputs).answers == [8, 16]
    assert len(on.engine.seeds) == 2 * (8 + 16)  # type: ignore[attr-defined]


def test_a_peer_that_tells_its_drafts_is_not_doubted() -> None:
    on, _ = subjects(logprobs=False)
    assert any("Nothing shows that" in limit for limit in on.limits())
    on.ask(PROMPTS, {"temperature": 1.0, "max_tokens": 2})
    assert on.drafted == 2
    assert not [*on.limits()]


def test_a_record_saves_a_peer_its_answers(tmp_path: Path) -> None:
    for calls in (3, 0):
        on, _ = subjects(logprobs=True)
        on.record = ReplyRecord.open(str(tmp_path / "record.jsonl"), {"subject": "made"})
        replies = on.ask(PROMPTS * 3, {"temperature": 1.0, "max_tokens": 2})
        assert [reply.first.tokens for reply in replies] == [(7, 7)] * 3
        assert len(on.engine.seeds) == calls  # type: ignore[attr-defined]
        assert on.record.ledger is not None
        on.record.ledger.close()


def test_every_answer_has_a_seed_of_its_own() -> None:
    on, off = subjects(logprobs=True)
    for subject in (on, off):
        subject.ask(PROMPTS * 3, {"temperature": 1.0, "max_tokens": 2})
    seeds = on.engine.seeds  # type: ignore[attr-defined]
    assert len(set(seeds)) == len(seeds) == 6
    with pytest.raises(RefusedError):
        on.ask(PROMPTS, {"temperature": 1.0, "max_tokens": 2, "seed": 3})


SERVES = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def program(folder: Path, text: str) -> None:
    """A llama-server that runs a piece of Python."""
    file = folder / "llama-server"
    file.write_text(f"#!{sys.executable}\nimport sys\n{text}")
    file.chmod(0o755)


def test_llama_server_runs_for_a_block_and_its_last_words_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="is not on PATH"), llama_server("x.gguf", []):
        pass
    program(tmp_path, "print('one'); sys.exit('no such file')")
    with pytest.raises(ConfigError, match="code 1: no such file"), llama_server("x.gguf", []):
        pass
    program(tmp_path, "import time; print('loading', flush=True); time.sleep(600)")
    with monkeypatch.context() as patch:
        patch.setattr(engines, "LOAD_SECONDS", 1.0)
        with pytest.raises(ConfigError, match="did not start in 1 s: loading"):
            llama_server("x.gguf", []).__enter__()
    program(tmp_path, SERVES)
    with llama_server("x.gguf", []) as url:
        assert Endpoint(url).fetch("/health") == {}
    with pytest.raises(EndpointError, match="no server answers"):
        Endpoint(url).fetch("/health")


class Started:
    """Stands for the engines that a proof starts, of a version."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.version, self.files = "b1", list[str]()
        reference = Reference(plain_engine())
        monkeypatch.setattr(run, "_reference", lambda *_: reference)
        monkeypatch.setattr(ModelOptions, "open", lambda _: None)
        monkeypatch.setattr(engines, "_file", lambda model, revision=None: f"{model} {revision}")
        monkeypatch.setattr(engines, "files_of", lambda _: Path("model"))
        monkeypatch.setattr(engines, "llama_server", self.server)
        monkeypatch.setattr(engines, "RemoteEngine", self.peer)

    @contextmanager
    def server(self, file: str, more: list[str]) -> Any:
        self.files.append(file)
        with scripted(Script(build=self.version)) as url:
            yield url

    @contextmanager
    def peer(self, *_: Any, **options: Any) -> Any:
        assert options["full_precision"]
        yield SimpleNamespace(call=lambda _: {"name": "made", "version": self.version})


def open_record(request: ProveRequest) -> None:
    """Start the engines of a request, and open its record."""
    with run._subjects(request, PROMPTS[0]) as subjects:
        record = subjects.on.record  # type: ignore[attr-defined]
        assert record is subjects.baseline.record  # type: ignore[attr-defined]
        record.ledger.close()


@pytest.mark.parametrize("subject", ["llama.cpp", "transformers"])
def test_a_record_of_another_engine_or_of_other_settings_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, subject: str
) -> None:
    started = Started(monkeypatch)
    outside = Outside(subject=subject, record=str(tmp_path / "record.jsonl"))
    request = ProveRequest(outside=outside, model=ModelOptions(model="some", revision="v1"))
    open_record(request)
    open_record(request)
    others = {
        "engine": replace(request, speculation=SpeculativeConfig(num_speculative_tokens=7)),
        "revision": replace(request, model=ModelOptions(model="some", revision="v2")),
        "subject_python": replace(request, outside=replace(outside, subject_python="python")),
    }
    for name, other in others.items():
        with pytest.raises(ConfigError, match=f"was made with {name}"):
            open_record(other)
    started.version = "b2"
    with pytest.raises(ConfigError, match="was made with engine"):
        open_record(request)


def test_forerun_serves_for_its_own_proof() -> None:
    request = ProveRequest(
        outside=Outside(subject="forerun"),
        model=ModelOptions(model="zoo", placement=Placement(dtype="fp32")),
        effort=Effort(num_tokens=64, output_tokens=16, part=("statistics",)),
    )
    content = prove_server(request).content
    assert content is not None
    assert content["verdict"] == "No defect was found."
    assert content["sampled"][0]["tokens"] == 64
    with pytest.raises(EndpointError, match="no server answers"):
        Endpoint(content["subject"]["endpoint"]).fetch("/health")


def test_llama_servers_run_the_revision_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch)
    request = ProveRequest(
        outside=Outside(subject="llama.cpp"), model=ModelOptions(model="some", revision="v1")
    )
    with run._subjects(request, PROMPTS[0]):
        assert started.files == ["some v1"] * 2
