"""llama.cpp through the low-level interface of llama-cpp-python.

Its high-level interface speculates by prompt lookup only, which is used where there is no draft model; the
loop here is that of llama.cpp's examples/speculative-simple, greedy: draft token by token, verify in one
batch, drop the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from forerun.bench.peers.contract import Peer, PeerOptions, import_package
from forerun.bench.peers.llama_cpp_context import MAX_BATCH, LlamaContext

FLASH_ATTENTION = True

WEIGHTS = {
    "fp32": "F32",
    "bf16": "BF16",
    "int8": "Q8_0, activations Q8_0",
    "int4": "Q4_0, head Q6_K, activations Q8",
    "stored": "as in the file, activations Q8",
}
"""llama.cpp's formats by precision; norms are always F32."""


class LlamaCppPeer(Peer):
    """llama.cpp behind the contract of `Peer`."""

    def __init__(self, options: PeerOptions) -> None:
        package = import_package("llama_cpp")
        super().__init__("llama.cpp", package.__version__)
        self._target = self._open(options, draft=False)
        self._draft = self._open(options, draft=True) if options.draft_dir else None
        self.settings = {
            "precision": WEIGHTS[options.precision],
            "weight_bytes": self._target.size,
            "kv_cache": "f16",
            "threads": options.threads,
            "flash_attention": FLASH_ATTENTION,
            "n_batch": MAX_BATCH,
            "draft": self._draft is not None,
            "max_context": self._target.max_context,
            "system": package.llama_cpp.llama_print_system_info().decode(),
        }

    @staticmethod
    def _open(options: PeerOptions, *, draft: bool) -> LlamaContext:
        directory = options.draft_dir if draft else options.checkpoint_dir
        assert directory is not None
        path = directory
        if options.precision != "stored":
            # Loads torch, which counts as memory of the process.
            from forerun.bench.peers.gguf_export import export

            path = export(directory, options.precision, options.cache_dir)
        return LlamaContext(path, options.threads, FLASH_ATTENTION, options.max_context)

    def forward_seconds(self, n: int, context: int) -> float:
        target = self._target
        if target.tokens != [1] * context:
            target.fill([1] * context)
        seconds = 0.0
        # The first builds the graph, which later forwards of the same size reuse.
        for _ in range(2):
            started = perf_counter()
            target.run([1] * n, logits="all")
            target.synchronize()
            seconds = perf_counter() - started
            target.keep(context)
        return seconds

    def generate(
        self, prompt_ids: Sequence[int], num_tokens: int, num_speculative_tokens: int = 0
    ) -> tuple[list[int], float]:
        self.check_request(prompt_ids, num_tokens)
        self._target.keep(0)
        started = perf_counter()
        if num_speculative_tokens:
            tokens = self._speculate(list(prompt_ids), num_tokens, num_speculative_tokens)
        else:
            tokens = self._plain(prompt_ids, num_tokens)
        return tokens, perf_counter() - started

    def _plain(self, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
        target = self._target
        target.run(prompt_ids)
        tokens = target.choices(1)
        while len(tokens) < num_tokens:
            target.run(tokens[-1:])
            tokens += target.choices(1)
        return tokens

    def _speculate(self, tokens: list[int], num_tokens: int, limit: int) -> list[int]:
        target, draft = self._target, self._draft
        start, end = len(tokens), len(tokens) + num_tokens
        target.run(tokens[:-1], logits="none")
        if draft is not None:
            draft.keep(0)
            draft.run(tokens[:-1], logits="none")
        while len(tokens) < end:
            # A round emits one token more than it accepts.
            room = min(limit, end - len(tokens) - 1)
            proposed = _look_up(tokens, room) if draft is None else _propose(draft, tokens, room)
            target.run([tokens[-1], *proposed], logits="all")
            choices = target.choices(len(proposed) + 1)
            accepted = 0
            while accepted < len(proposed) and proposed[accepted] == choices[accepted]:
                accepted += 1
            tokens += choices[: accepted + 1]
            target.keep(len(tokens) - 1)
            if draft is not None:
                draft.keep(len(tokens) - 1)
        return tokens[start:]

    def close(self) -> None:
        for model in (self._target, self._draft):
            if model is not None:
                model.close()


def _propose(draft: LlamaContext, tokens: Sequence[int], count: int) -> list[int]:
    """The draft's greedy continuation; its cache first catches up with `tokens`."""
    proposed: list[int] = []
    new = tokens[len(draft.tokens) :]
    for _ in range(count):
        draft.run(new)
        new = draft.choices(1)
        proposed += new
    return proposed


def _look_up(tokens: Sequence[int], count: int) -> list[int]:
    """What followed the last tokens before, as the package itself looks it up."""
    if not count:
        return []
    module = import_package("llama_cpp.llama_speculative")
    found = module.LlamaPromptLookupDecoding(num_pred_tokens=count)(np.array(tokens))
    proposed: list[int] = found.tolist()
    return proposed[:count]


def load(options: PeerOptions) -> LlamaCppPeer:
    """A peer with these models; see `load_peer` for the errors."""
    return LlamaCppPeer(options)
