"""OpenVINO: forwards through its runtime, decoding through OpenVINO GenAI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from forerun.bench.peers.contract import MAX_CONTEXT, Peer, PeerOptions, import_package
from forerun.bench.peers.openvino_export import WEIGHTS, export

PLAIN_BACKEND = "PA"
"""Of plain decoding: paged attention, or `SDPA`; draft models need paged attention."""

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
        self.check_request(prompt_ids, num_tokens)
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_tokens, True, False
        pipeline = self._plain
        if num_speculative_tokens:
            pipeline, config.num_assistant_tokens = self._speculative, num_speculative_tokens
            if self._draft_directory is None:
                config.max_ngram_size = LONGEST_NGRAM
        ids = np.array([prompt_ids], np.int64)
        tensor = self._openvino.Tensor
        prompt = self._genai.TokenizedInputs(tensor(ids), tensor(np.ones_like(ids)))
        started = perf_counter()
        output = pipeline.generate(prompt, config)
        seconds = perf_counter() - started
        return list(output.tokens[0]), seconds

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


def load(options: PeerOptions) -> OpenVinoPeer:
    """A peer with these models; see `load_peer` for the errors."""
    return OpenVinoPeer(options)
