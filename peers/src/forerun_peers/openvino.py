"""OpenVINO: forwards through its runtime, decoding through OpenVINO GenAI.

Checkpoints are converted to OpenVINO IR by the tool of its documentation, optimum-cli. optimum-intel lags
behind transformers, so the tool runs as a program of another environment: the one that the variable
FORERUN_OPTIMUM_CLI names, else the first on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from forerun.bench.peers import MAX_CONTEXT, Peer, PeerOptions
from forerun.errors import ConfigError, UnsupportedModelError
from forerun_peers.conversion import converted, import_package

VARIABLE = "FORERUN_OPTIMUM_CLI"

WEIGHTS = {
    "fp32": ("fp32",),
    "bf16": ("fp16",),
    "int8": ("int8", "--sym"),
    "int4": ("int4", "--sym", "--group-size", "32", "--ratio", "1.0"),
}
"""Options of `--weight-format` by precision; it has no bf16, and 32 is the group of Q4_0."""

PLAIN_BACKEND = "PA"
"""Of plain decoding: paged attention, or `SDPA`; draft models need paged attention."""

FULL_PRECISION = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
"""Properties; by default keys, values and activations have 8 bits, the latter in groups."""

LONGEST_NGRAM = 3
"""Tokens that its prompt lookup looks for at most; the number of its own example."""

REPEATED = 3
"""Forwards of the same size before the timed one."""


class OpenVinoPeer(Peer):
    """OpenVINO behind the contract of `Peer`.

    The pipelines and the bare model have separate weights, each loaded at its first use.
    """

    def __init__(self, options: PeerOptions) -> None:
        genai = import_package("openvino_genai")
        self._genai, self._openvino = genai, import_package("openvino")
        super().__init__("openvino", genai.__version__)
        self._directory = _model(options.checkpoint_dir, options)
        self._draft_directory = options.draft_dir and _model(options.draft_dir, options)
        self._properties = {
            "INFERENCE_NUM_THREADS": options.threads,
            "INFERENCE_PRECISION_HINT": "f32" if options.precision == "fp32" else "bf16",
            "PERFORMANCE_HINT": "LATENCY",
        }
        if options.full_precision:
            self._properties |= FULL_PRECISION
        stored = options.precision == "stored"
        weights = self._directory if stored else self._directory / "openvino_model.bin"
        self.settings = {
            "precision": "as in the file" if stored else " ".join(WEIGHTS[options.precision]),
            "weight_bytes": weights.stat().st_size,
            "threads": options.threads,
            "attention_backend": f"{PLAIN_BACKEND} plain, PA speculative; SDPA for forward_seconds",
            "prefix_caching": False,
            "draft": options.draft_dir is not None,
            "max_context": min(MAX_CONTEXT, _context(options.checkpoint_dir)),
            **self._properties,
        }

    @cached_property
    def _request(self) -> Any:
        path = self._directory / "openvino_model.xml"
        model = self._openvino.Core().compile_model(path, "CPU", self._properties)
        for name in ("KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE"):
            self.settings[f"forward {name}"] = str(model.get_property(name))
        return model.create_infer_request()

    def _forward(self, n: int, past: int) -> float:
        inputs = {
            "input_ids": np.ones((1, n), np.int64),
            "attention_mask": np.ones((1, past + n), np.int64),
            "position_ids": np.arange(past, past + n)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        started = perf_counter()
        self._request.infer(inputs, share_inputs=True, share_outputs=True)
        return perf_counter() - started

    def forward_seconds(self, n: int, context: int) -> float:
        # States cannot be cut, and setting a copy costs another copy at the next forward. So they
        # are filled anew, the last part by forwards of the same size: a change of shapes costs too.
        self._request.reset_state()
        repeated = min(REPEATED, max(context - 1, 0) // n)
        if context:
            self._forward(context - repeated * n, 0)
        for past in range(context - repeated * n, context, n):
            self._forward(n, past)
        return self._forward(n, context)

    def _paged(self, **more: Any) -> Any:
        scheduler = self._genai.SchedulerConfig()
        # On by default; it would make every prompt but the first free.
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = MAX_CONTEXT
        scheduler.max_num_seqs = 1
        return self._pipeline("PA", scheduler_config=scheduler, **more)

    def _pipeline(self, backend: str, **more: Any) -> Any:
        more = {"ATTENTION_BACKEND": backend, **self._properties, **more}
        return self._genai.LLMPipeline(str(self._directory), "CPU", **more)

    @cached_property
    def _plain(self) -> Any:
        return self._paged() if PLAIN_BACKEND == "PA" else self._pipeline(PLAIN_BACKEND)

    @cached_property
    def _speculative(self) -> Any:
        if self._draft_directory is None:
            return self._paged(prompt_lookup=True)
        directory = str(self._draft_directory)
        draft = self._genai.draft_model(directory, "CPU", **self._properties)
        return self._paged(draft_model=draft)

    def generate(
        self, prompt_ids: Sequence[int], num_tokens: int, num_speculative_tokens: int = 0
    ) -> tuple[list[int], float]:
        started = perf_counter()
        found = self._answer(prompt_ids, num_tokens, num_speculative_tokens, do_sample=False)
        return list(found.tokens[0]), perf_counter() - started

    def answer(
        self,
        prompt_ids: Sequence[int],
        num_tokens: int,
        num_speculative_tokens: int,
        **sampling: Any,
    ) -> dict[str, Any]:
        seed, top_k = sampling.pop("seed"), sampling.pop("top_k")
        drawn: dict[str, Any] = {"do_sample": False}
        if sampling["temperature"]:
            # Without a limit of its own it draws among all tokens.
            drawn = {"do_sample": True, "rng_seed": seed, "top_k": top_k or 2**31, **sampling}
        found = self._answer(prompt_ids, num_tokens, num_speculative_tokens, **drawn)
        # Tokens that a forward gave beside the first were drafted and accepted.
        sizes = found.perf_metrics.raw_metrics.m_batch_sizes
        return {"tokens": list(found.tokens[0]), "drafted": sum(sizes) - len(sizes)}

    def _answer(
        self,
        prompt_ids: Sequence[int],
        num_tokens: int,
        num_speculative_tokens: int,
        **options: Any,
    ) -> Any:
        self.check_request(prompt_ids, num_tokens)
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = num_tokens, True
        for name, value in options.items():
            setattr(config, name, value)
        pipeline = self._plain
        if num_speculative_tokens:
            pipeline, config.num_assistant_tokens = self._speculative, num_speculative_tokens
            if self._draft_directory is None:
                config.max_ngram_size = LONGEST_NGRAM
        ids = np.array([prompt_ids], np.int64)
        tensor = self._openvino.Tensor
        prompt = self._genai.TokenizedInputs(tensor(ids), tensor(np.ones_like(ids)))
        return pipeline.generate(prompt, config)

    def close(self) -> None:
        for name in ("_request", "_plain", "_speculative"):
            self.__dict__.pop(name, None)


def _model(path: Path, options: PeerOptions) -> Path:
    """What its pipelines read: a converted model, or a GGUF file as it is."""
    return path if path.is_file() else export(path, options.precision, options.cache_dir)


def _context(path: Path) -> int:
    if path.is_file():
        return MAX_CONTEXT
    return int(json.loads((path / "config.json").read_text("utf-8"))["max_position_embeddings"])


def export(checkpoint_dir: Path, precision: str, cache_dir: Path) -> Path:
    """The directory with the stateful IR of a checkpoint, converted unless it exists.

    Raises:
        ConfigError: without optimum-cli.
        UnsupportedModelError: when it fails, with the last line of its output.
    """
    directory = converted(cache_dir, checkpoint_dir, f"{precision}-ov")
    if directory.is_dir():
        return directory
    command = [_tool(), "export", "openvino", "--task", "text-generation-with-past"]
    command += ["--model", str(checkpoint_dir), "--weight-format", *WEIGHTS[precision]]
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        output = Path(scratch) / "model"
        done = subprocess.run([*command, str(output)], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UnsupportedModelError(f"optimum-cli cannot export {checkpoint_dir}: {reason}")
        output.rename(directory)
    return directory


def _tool() -> str:
    tool = os.environ.get(VARIABLE) or shutil.which("optimum-cli")
    if tool is None or shutil.which(tool) is None:
        raise ConfigError(
            f"the OpenVINO peer needs optimum-cli; run pip install 'optimum-intel[openvino]' in a "
            f"separate environment and set {VARIABLE} to the path of its optimum-cli."
        )
    return tool
