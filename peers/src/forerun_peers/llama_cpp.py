"""llama.cpp through the low-level interface of llama-cpp-python.

Its high-level interface speculates by prompt lookup only, which is used where there is no draft model; the
loop here is that of llama.cpp's examples/speculative-simple, greedy: draft token by token, verify in one
batch, drop the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.bench.peers import Peer, PeerOptions
from forerun.errors import CacheError, CheckpointError
from forerun_peers.conversion import import_package

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
            from forerun_peers.gguf_export import export

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


MAX_BATCH = 512
"""Tokens of one forward; longer prompts run in pieces. It is llama.cpp's own default."""


class LlamaContext:
    """A model and one row of its cache, which always holds `tokens`.

    Args:
        path: of a GGUF file.
        threads: for prompts and for decoding alike.
        flash_attention: fused attention.
        max_context: tokens to keep keys and values for, at most the model's own.

    Raises:
        CheckpointError: when llama.cpp cannot read the file.
    """

    def __init__(self, path: Path, threads: int, flash_attention: bool, max_context: int) -> None:
        self._library = library = import_package("llama_cpp").llama_cpp
        _silence(library)
        library.llama_backend_init()
        params = library.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = library.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise CheckpointError(f"llama.cpp cannot read {path}; delete it to make it again.")
        self.size: int = library.llama_model_size(self._model)
        self.max_context = min(max_context, library.llama_model_n_ctx_train(self._model))
        self._context = library.llama_init_from_model(
            self._model, self._parameters(threads, flash_attention)
        )
        self._memory = library.llama_get_memory(self._context)
        self._batch = library.llama_batch_init(MAX_BATCH, 0, 1)
        vocabulary = library.llama_model_get_vocab(self._model)
        self._vocab_size: int = library.llama_vocab_n_tokens(vocabulary)
        self.tokens: list[int] = []

    def _parameters(self, threads: int, flash_attention: bool) -> Any:
        params = self._library.llama_context_default_params()
        params.n_ctx = self.max_context
        # A second sequence, of the same cells, for `fill`.
        params.n_seq_max, params.kv_unified = 2, True
        params.n_batch = params.n_ubatch = MAX_BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash_attention)
        params.no_perf = True
        return params

    def run(self, new: Sequence[int], logits: str = "last") -> None:
        """Forward over `new` tokens after those in the cache.

        Args:
            new: at least 1 token.
            logits: `none`, `last` or `all`; `all` for at most MAX_BATCH tokens.

        Raises:
            CacheError: when the cache is full.
        """
        for start in range(0, len(new), MAX_BATCH):
            piece = new[start : start + MAX_BATCH]
            self._decode(piece, logits)

    def fill(self, tokens: Sequence[int]) -> None:
        """Put `tokens` into the cache, in pieces that do not see each other: what a later forward takes does
        not depend on what its keys are, and long contexts are filled in seconds."""
        self.keep(0)
        for start in range(0, len(tokens), MAX_BATCH):
            self._decode(tokens[start : start + MAX_BATCH], "none", sequence=1)
            self._library.llama_memory_seq_cp(self._memory, 1, 0, -1, -1)
            self._library.llama_memory_seq_rm(self._memory, 1, -1, -1)

    def _decode(self, piece: Sequence[int], logits: str, sequence: int = 0) -> None:
        self._put(piece, logits == "all", sequence)
        self._batch.logits[len(piece) - 1] = logits != "none"
        status = self._library.llama_decode(self._context, self._batch)
        if status:
            raise CacheError(f"llama_decode failed with {status} at {len(self.tokens)} tokens.")
        self.tokens += piece

    def _put(self, piece: Sequence[int], logits: bool, sequence: int) -> None:
        batch, position = self._batch, len(self.tokens)
        batch.n_tokens = len(piece)
        for at, token in enumerate(piece):
            batch.token[at] = token
            batch.pos[at] = position + at
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = sequence
            batch.logits[at] = logits

    def synchronize(self) -> None:
        """Wait until the last forward has written its logits."""
        self._library.llama_synchronize(self._context)

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Logits of the last forward, [rows, V]: a view that the next forward overwrites."""
        pointer = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(rows, self._vocab_size))

    def choices(self, rows: int) -> list[int]:
        """The likeliest next token of each row of the last forward."""
        token_ids: list[int] = self.logits(rows).argmax(axis=1).tolist()
        return token_ids

    def keep(self, length: int) -> None:
        """Drop all but the first `length` tokens from the cache."""
        if length < len(self.tokens):
            self._library.llama_memory_seq_rm(self._memory, 0, length, -1)
            del self.tokens[length:]

    def close(self) -> None:
        """Free cache and model."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)


@cache
def _silence(library: Any) -> Any:
    """Keep llama.cpp from writing its log to stderr.

    It keeps a bare pointer to the function, so the cache keeps the function alive.
    """
    ignore = library.llama_log_callback(_ignore)
    library.llama_log_set(ignore, None)
    return ignore


def _ignore(*_: object) -> None:
    pass
