"""A decoder on the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from forerun import _native
from forerun.compression import Compression
from forerun.contracts import Ability, ChainRequest
from forerun.core import Batch, Draft, Exactness, ForwardOutput, HiddenStates, View
from forerun.costs.precision import bytes_of_text
from forerun.errors import (
    CacheError,
    CheckpointError,
    ConfigError,
    MemoryLimitError,
    UnknownNameError,
)
from forerun.interrupts import held_back
from forerun.models.architecture import Architecture
from forerun.models.cpu.cache import (
    CompressedCpuCache,
    CpuCache,
    DraftHead,
    TypedErrors,
    new_native_cache,
)
from forerun.models.cpu.modules import CpuModules, drafts_of, native_chain, rows_to_fill
from forerun.models.cpu.threads import shared_pool, thread_pool
from forerun.models.cpu.weights import chunks, describe_shape
from forerun.models.layers import check_evicts, layers_to_run
from forerun.models.layouts import layout_of
from forerun.models.rope import rotary_tables, rotated_to
from forerun.models.run_config import KERNEL_PRECISIONS, STORED
from forerun.models.sources import CodedSource, Source, loading, match_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVELS = ("portable", "avx2", "avx512", "amx")
GROUPS = (32, 64, 128)
# Columns that share a scale in weights that their file holds quantized.
STORED_GROUP = 32


@dataclass(frozen=True)
class KernelChoice:
    """The kernels that run a model; the defaults are the best available.

    Args:
        level: the instruction set, `portable`, `avx2`, `avx512` or `amx`; empty for the best
            available.
        group: columns that share a scale in int8 and int4: 32, 64 or 128; 0 for 64 and 32.
        threads: number of threads; None for the process's own number.

    Raises:
        ConfigError: for an unknown level or group.
    """

    level: str = ""
    group: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.level not in ("", *LEVELS):
            raise UnknownNameError("level", self.level, LEVELS)
        if self.group not in (0, *GROUPS):
            raise ConfigError(f"group is {self.group}; it must be 32, 64 or 128 columns, or 0.")


class CpuModel:
    """A decoder on the compiled kernels; implements `forerun.contracts.CausalLM`.

    Logits and hidden states are float32, whatever the weights are. They do not depend on the number
    of tokens, the tree, the row of a batch, the chunk of a prompt or the number of threads that
    they were computed with.

    Args:
        shape: architecture of the model.
        source: published weights, read chunk by chunk.
        precision: precision of the weights: `fp32`, `bf16`, `int8` or `int4`, or `stored`: that of
            a source of quantized weights, matrix by matrix. Keys and values are kept in fp32 for
            fp32, else in bf16; the output head of an int4 model is int8.
        name: name of the model in messages and reports.
        choice: choice of the kernels.

    Raises:
        CheckpointError: for missing, unexpected, misshapen or non-finite weights, or a shape that
            the kernels cannot run.
        ConfigError: for an unknown precision, or more threads than cores.
        MemoryLimitError: if they do not fit into memory.
    """

    exactness = Exactness.BITWISE
    abilities = frozenset(
        {
            Ability.DRAFT_CHAINS,
            Ability.EVICTION,
            Ability.MODULES,
            Ability.SESSIONS,
            Ability.VIEWS,
        }
    )

    def __init__(
        self,
        shape: Architecture,
        source: Source,
        precision: str,
        name: str,
        choice: KernelChoice = KernelChoice(),
    ) -> None:
        if precision not in (*KERNEL_PRECISIONS, STORED):
            raise UnknownNameError("precision", precision, KERNEL_PRECISIONS)
        self.shape, self.name, self.precision = shape, name, precision
        self.vocab_size, self.num_layers = shape.vocab_size, shape.num_layers
        self.hidden_size, self.max_context = shape.hidden_size, shape.max_context
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self._pool = shared_pool() if choice.threads is None else thread_pool(choice.threads)
        self._level = choice.level
        self.kv_dtype, self.head_dim = "auto", shape.head_dim
        self._errors = TypedErrors(name)
        try:
            formats: Mapping[str, str] = {}
            usual, group = precision, choice.group
            if precision == STORED:
                formats = cast(CodedSource, source).formats(layout_of(shape))
                usual, group = "bf16", STORED_GROUP
            described = describe_shape(shape, usual, group, formats)
            self._decoder = _native.kernels.Decoder(described, choice.level)
            self._load(source, formats)
        except ValueError as error:
            raise CheckpointError(f"{name} cannot run on the CPU kernels: {error}.") from None
        except MemoryError:
            raise MemoryLimitError(
                f"there is not enough memory for the weights of {name} in {precision}; "
                "use a smaller dtype."
            ) from None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        return int(self._decoder.weight_bytes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, precision={self.precision!r})"

    def bytes_read(self, context: int, layers: int, view: View | None = None) -> float:
        """Bytes of weights, keys and values that one token reads; see `forerun.contracts.ReadsViews`."""
        shape, decoder = self.shape, self._decoder
        own = 4 if self.precision == "fp32" else 2
        heads = (shape.num_kv_heads, shape.head_dim)
        cached = bytes_of_text(context, heads, self.kv_dtype, own, view)
        return float(decoder.head_bytes + layers * (decoder.layer_bytes / self.num_layers + cached))

    def bytes_spared(self, context: int, draft_vocab_size: int) -> float:
        """Bytes of the output head that a chain does not read; see `forerun.contracts.DraftsChains`."""
        # A text of 7,600 tokens has 2,000 different ones.
        drafted = draft_vocab_size + context / 3
        return float(self._decoder.head_bytes * max(0.0, 1 - drafted / self.vocab_size))

    def new_cache(self, rows: int, capacity: int) -> CpuCache:
        """An empty cache of `rows` rows of `capacity` tokens each.

        Raises:
            CacheError: for fewer than one row or token.
            MemoryLimitError: if it does not fit into memory.
        """
        return CpuCache(self._native_cache(rows, capacity))

    def compressed_cache(
        self, rows: int, capacity: int, compression: Compression
    ) -> CompressedCpuCache:
        """An empty cache of `rows` rows of `capacity` tokens each, some of which will be evicted.

        Raises:
            CacheError, MemoryLimitError: as in `new_cache`.
            UnsupportedModelError: for a model with sliding windows shorter than its context.
        """
        shape = self.shape
        check_evicts(shape, self.name, compression)
        native = self._native_cache(rows, capacity)
        tables = rotary_tables(shape, torch.float32, self.device)
        rotate = partial(rotated_to, tables.get(shape.ropes[0]))
        return CompressedCpuCache(native, self._pool, compression, rotate, shape.num_heads)

    def _native_cache(self, rows: int, capacity: int) -> Any:
        kv_dtype = "" if self.kv_dtype == "auto" else self.kv_dtype
        return new_native_cache(self._decoder, rows, capacity, self.name, kv_dtype)

    def forward(self, batch: Batch, cache: CpuCache) -> ForwardOutput:
        """Run new tokens and append their keys and values, as `forerun.contracts.CausalLM` says.

        Raises:
            CacheError: for a batch that contradicts the cache, a full row, a position beyond the
                context, or a cache of another kind of model.
            ConfigError: for layers that the model does not have or that are not run, and token ids
                outside the vocabulary.
        """
        layers = layers_to_run(self, batch)
        if not isinstance(cache, CpuCache):
            raise CacheError(
                f"{self.name} was given a {type(cache).__name__}; make a cache with its new_cache."
            )
        cache.check_view(batch.view)
        last = batch.logits_for == "last"
        # Padding is not written to, but it must hold numbers.
        make = torch.empty if batch.even else torch.zeros
        logits = None
        if batch.logits_for != "none" and layers.stop == self.num_layers:
            logits = make(len(batch), 1 if last else batch.width, self.vocab_size)
        wanted, size = batch.hidden_layers, self.hidden_size
        states = make(len(batch), batch.width, len(wanted) * size) if wanted else None
        queries = cache.room_for_queries(batch, layers)
        with self._errors, nullcontext() if queries is None else held_back():
            self._decoder.forward(
                self._pool,
                cache.native,
                batch.rows,
                batch.token_ids,
                batch.positions,
                (layers.start, layers.stop),
                None if logits is None else logits.numpy(),
                last,
                batch.tree_mask,
                None if batch.hidden_in is None else _floats(batch.hidden_in),
                (wanted, None if states is None else states.numpy()),
                _native_view(batch.view),
                None if queries is None else queries.numpy(),
            )
            if queries is not None:
                cache.note_queries(batch, layers, queries)
        if states is None:
            return ForwardOutput(logits)
        return ForwardOutput(logits, HiddenStates(wanted, states))

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [B, n, hidden_size] of token ids [B, n], without those of positions.

        Raises:
            ConfigError: for ids outside the vocabulary.
        """
        ids = token_ids.long().flatten()
        out = torch.empty(len(ids), self.hidden_size)
        with self._errors:
            self._decoder.embed(ids.numpy(), out.numpy())
        return out.view(*token_ids.shape, -1)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the norm before the output head to hidden states [B, n, hidden_size].

        Raises:
            ConfigError: for hidden states of another size.
        """
        return self._part(self._decoder.final_norm, hidden, self.hidden_size)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of normed hidden states [B, n, hidden_size].

        From the states after the last layer they are the logits of a forward, bit for bit.

        Raises:
            ConfigError: for hidden states of another size.
        """
        return self._part(self._decoder.lm_head, hidden, self.vocab_size)

    def _part(self, part: Callable[..., None], hidden: Tensor, width: int) -> Tensor:
        """Run a part of the decoder on [..., hidden_size]; the result is [..., width]."""
        out = torch.empty(*hidden.shape[:-1], width)
        states = _floats(hidden).reshape(-1, hidden.shape[-1])
        with self._errors:
            part(self._pool, states, out.view(-1, width).numpy())
        return out

    def modules(self) -> CpuModules:
        """Builder of modules on the kernels, as `forerun.contracts.BuildsModules` says."""
        build = partial(CpuModules, self._pool, level=self._level, decoder=self._decoder)
        if self.precision not in ("int4", STORED):
            return build(precision=self.precision)
        # int4 in a trained head's layers costs a hundredth of its acceptance. In its output rows and in the
        # fusing of its inputs it costs four hundredths, more than the time that it saves there.
        return build(precision="int8", layers="int4")

    def draft_chains(
        self,
        cache: CpuCache,
        requests: Sequence[ChainRequest],
        vocab_size: int,
        view: View | None = None,
    ) -> list[Draft]:
        """Draft chains side by side, as `forerun.contracts.DraftsChains` says.

        Raises:
            CacheError: if a row is full or a position lies beyond the context.
            DistributionError: for logits that are not numbers.
        """
        cache.check_view(view)
        probs = rows_to_fill(requests, vocab_size)
        with self._errors:
            drafted = _native.kernels.draft_chains(
                self._decoder,
                self._pool,
                cache.native,
                [native_chain(chain, self._draft_head(cache, chain)) for chain in requests],
                [rows.numpy() for rows in probs],
                vocab_size,
                _native_view(view),
            )
        return drafts_of(drafted, probs)

    def _draft_head(self, cache: CpuCache, chain: ChainRequest) -> Any:
        """The output head for tokens that the chain may draft, kept with its row; None for the whole."""
        size = chain.draft_vocab_size
        if size is None or size >= self.vocab_size:
            return None
        text = chain.text
        key, head = (text.request_id, size), cache.draft_heads.get(chain.row)
        # A text that is shorter than before was rolled back.
        if head is None or head.key != key or head.seen > len(text):
            head = DraftHead(key, _native.kernels.DraftHead(self._decoder, size))
            head.native.add(list(text.stop_token_ids))
            cache.draft_heads[chain.row] = head
        head.native.add(text.token_ids[head.seen :])
        head.native.add(chain.likely[head.likely :])
        head.seen, head.likely = len(text), len(chain.likely)
        return head.native

    def _load(self, source: Source, formats: Mapping[str, str]) -> None:
        layout = layout_of(self.shape)
        keys = match_keys(source, layout)
        for tensor in loading(layout.tensors, self.name):
            try:
                for start, chunk in chunks(tensor, source, keys, formats):
                    load = self._load_values if isinstance(chunk, Tensor) else self._load_codes
                    load(tensor.name, start, chunk)
            except ValueError as error:
                raise CheckpointError(f"{source.name}: {error}.") from None

    def _load_values(self, name: str, start: int, chunk: Tensor) -> None:
        width, dtype = chunk[0].numel(), str(chunk.dtype).removeprefix("torch.")
        self._decoder.load(self._pool, name, start, len(chunk), width, chunk.data_ptr(), dtype)

    def _load_codes(self, name: str, start: int, groups: Any) -> None:
        parts = [
            None if part is None else np.ascontiguousarray(part)
            for part in (groups.codes, groups.scales, groups.offsets)
        ]
        addresses = [0 if part is None else part.ctypes.data for part in parts]
        self._decoder.load_codes(self._pool, name, start, *groups.codes.shape, *addresses)


def _native_view(view: View | None) -> tuple[int, int, bool, int] | None:
    return None if view is None else (view.sinks, view.window, view.coarse, view.blocks)


def _floats(hidden: Tensor) -> NDArray[np.float32]:
    """Hidden states in the form that the kernels take."""
    floats: NDArray[np.float32] = hidden.detach().float().contiguous().numpy()
    return floats
