"""Engines that a proof starts and ends: llama-server, and peers in processes of their own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from forerun import __version__
from forerun.bench.contestants import files_of
from forerun.bench.peers.process import CALL_SECONDS, RemoteEngine
from forerun.errors import ConfigError, EndpointError
from forerun.flags import settings_in
from forerun.models import Checkpoint
from forerun.models.cpu.threads import threads_in_use
from forerun.proof.outside.client import Endpoint, RefusedError
from forerun.proof.outside.options import Outside
from forerun.proof.outside.reference import Reference
from forerun.proof.outside.reply import Reply, Spoken
from forerun.proof.outside.subject import Body, ReplyRecord, Subject

if TYPE_CHECKING:
    from forerun.proof.request import ProveRequest

PROGRAM = "llama-server"
# Requests that it answers at once, tokens of each, and the longest n-gram that it looks up.
_SLOTS, _CONTEXT, _NGRAM = 4, 2048, 3
# Options of a proof that its server is started with.
_SERVED = (
    *("model", "revision", "dtype", "device", "backend", "max_context", "threads", "kv_dtype"),
    *("draft_model", "policy", "num_speculative_tokens", "rejection_sample_method"),
)
PLAINLY = '{"speculative": false}'
LOAD_SECONDS = CALL_SECONDS
"""Seconds for a server to load its model."""
_PATIENCE = 10.0  # seconds for a server to end by itself, or to say that it loads
_DEFAULT_TOKENS = 4


@dataclass
class PeerSubject(Subject):
    """A peer of `forerun bench`, speculating or not, on token ids of the reference's tokenizer.

    Args:
        engine: the peer's process.
        reference: the checkpoint that it runs.
        num_speculative_tokens: drafted a round; 0 decodes plainly.
        seed: answers count up from it.
        record: replies of an earlier run.
    """

    name: str
    engine: RemoteEngine
    reference: Reference
    num_speculative_tokens: int
    seed: int
    record: ReplyRecord = field(default_factory=ReplyRecord)
    one_at_a_time: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self._facts = self.engine.call("describe")
        self.model = self.reference.model

    def ask(self, prompts: Sequence[str], body: Body, at_once: int = 1) -> list[Reply]:
        sampling = {"top_k": 0, "top_p": 1.0, **body}
        count = sampling.pop("max_tokens")
        if unknown := sampling.keys() - {"temperature", "top_k", "top_p"}:
            raise RefusedError(
                f"{self.name} is not asked for {', '.join(sorted(unknown))} here.", 501
            )
        return [self._answer(prompt, count, sampling) for prompt in prompts]

    def _answer(self, prompt: str, count: int, sampling: dict[str, Any]) -> Reply:
        self.seed += 1
        prompt_ids = self.reference.encode(prompt)
        asked = {
            "prompt_ids": prompt_ids,
            "num_tokens": count,
            "num_speculative_tokens": self.num_speculative_tokens,
            "seed": self.seed,
            **sampling,
        }
        key = self.record.key(self.name, asked)
        found = self.record.reply(key, lambda: self.engine.call("answer", **asked))
        tokens = tuple(found["tokens"])
        logprobs = tuple(found.get("logprobs", ()))
        self.drafted += found.get("drafted", 0)
        spoken = self.reference.spoken(tokens, logprobs, "length")
        return Reply((spoken,), {"prompt_tokens": len(prompt_ids)})

    def margin(
        self, prompt: str, own: Spoken, other: Spoken, index: int, body: Body
    ) -> float | None:
        """Distance by the reference's row."""
        return self.reference.margin(prompt, own, other, index, body)

    def facts(self) -> dict[str, Any]:
        return {**self._facts, "num_speculative_tokens": self.num_speculative_tokens}

    def limits(self) -> Iterator[str]:
        if not self.drafted:
            yield f"Nothing shows that {self._facts['name']} drafted: what never drafts would pass."


@contextmanager
def peers(request: ProveRequest, reference: Reference) -> Iterator[tuple[PeerSubject, PeerSubject]]:
    """A peer with speculation and without, whose replies are not kept.

    Raises:
        ConfigError: for a peer that is not installed or cannot run the checkpoint.
    """
    name, draft = request.outside.subject, request.speculation.model
    assert name is not None
    directory = files_of(request.model.open())
    options: dict[str, Any] = {
        "checkpoint_dir": str(directory),
        "precision": "stored" if directory.is_file() else "fp32",
        "threads": threads_in_use(),
        "draft_dir": None if draft is None else str(files_of(Checkpoint.open(draft))),
        "cache_dir": str(Path.home() / ".cache" / "forerun" / "peers"),
        # What speculation changes is to be told from what quantization does.
        "full_precision": True,
    }
    seed, count = request.effort.seed, request.speculation.num_speculative_tokens or _DEFAULT_TOKENS
    with RemoteEngine(name, name=name, python=request.outside.subject_python, **options) as engine:
        # Loading takes as long as it takes.
        engine.limit = request.outside.request_timeout
        yield (
            PeerSubject("with speculation", engine, reference, count, seed * 2**20),
            PeerSubject("without speculation", engine, reference, 0, (2 * seed + 1) * 2**19),
        )


@contextmanager
def forerun_server(request: ProveRequest) -> Iterator[tuple[Outside, dict[str, Any]]]:
    """Address of a `forerun serve`, which drafts unless a request says otherwise, and its options."""
    settings = settings_in(request)
    facts = {name: settings[name] for name in _SERVED if settings.get(name) is not None}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in facts.items()]
    with served([sys.executable, "-m", "forerun", "serve", *flags]) as url:
        yield replace(request.outside, endpoint=url, switch=PLAINLY), facts | {"build": __version__}


@contextmanager
def llama_servers(request: ProveRequest) -> Iterator[tuple[Outside, dict[str, Any]]]:
    """Addresses of a llama-server with speculation and of one without, and their settings.

    Raises:
        ConfigError: without the program, or where it cannot run the model.
    """
    draft = request.speculation.model
    count = str(request.speculation.num_speculative_tokens or _DEFAULT_TOKENS)
    if draft is None:
        method = ["ngram-simple", "--spec-ngram-simple-size-n", str(_NGRAM)]
        method += ["--spec-ngram-simple-size-m", count]
    else:
        method = ["draft-simple", "--spec-draft-model", _file(draft), "--spec-draft-n-max", count]
    file = _file(request.model.model, request.model.revision)
    with llama_server(file, ["--spec-type", *method]) as on, llama_server(file, []) as off:
        build = Endpoint(on, timeout=_PATIENCE).fetch("/props").get("build_info")
        facts = {"build": build, "num_speculative_tokens": int(count), "threads": threads_in_use()}
        yield replace(request.outside, endpoint=on, baseline_endpoint=off), facts


def _file(model: str, revision: str | None = None) -> str:
    """Path of a model's GGUF file.

    Raises:
        ConfigError: for a model that has none.
    """
    path = files_of(Checkpoint.open(model, revision))
    if path.is_dir():
        raise ConfigError(f"{model} is no GGUF file; llama.cpp reads no other.")
    return str(path)


SERVERS = {"forerun": forerun_server, "llama.cpp": llama_servers}
"""Functions that start the servers of subjects that have any."""


@contextmanager
def llama_server(file: str, more: Sequence[str]) -> Iterator[str]:
    """The URL of a llama-server on a GGUF file, which ends with the block.

    Raises:
        ConfigError: without the program, or with its last words where it does not start.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise ConfigError(f"{PROGRAM} is not on PATH; install llama.cpp.")
    command = [program, "--model", file, "--parallel", str(_SLOTS), "--no-warmup"]
    command += ["--ctx-size", str(_SLOTS * _CONTEXT), "--threads", str(threads_in_use())]
    with served([*command, "--fit", "off", *more]) as url:
        yield url


@contextmanager
def served(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of a server that a command starts on a free port; it ends with the block.

    Raises:
        ConfigError: with its last words, if it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, name, end = f"http://127.0.0.1:{port}", Path(command[0]).name, monotonic() + LOAD_SECONDS
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while not _answers(url):
                log.seek(0)
                last = log.read().decode(errors="replace").strip().rpartition("\n")[2]
                if process.poll() is not None:
                    raise ConfigError(f"{name} ended with code {process.returncode}: {last}")
                if monotonic() > end:
                    raise ConfigError(f"{name} did not start in {LOAD_SECONDS:g} s: {last}")
                sleep(0.2)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    """True once a server at a URL has loaded its model."""
    try:
        Endpoint(url, timeout=_PATIENCE).fetch("/health")
    except EndpointError:
        return False
    return True
