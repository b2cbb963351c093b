"""A model in llama.cpp with its cache, by the few calls of its low-level interface used here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.bench.peers.contract import import_package
from forerun.errors import CacheError, CheckpointError

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
