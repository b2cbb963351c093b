"""Model parts on the compiled kernels, from which heads and adapters are composed, and chains of drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from forerun import _native
from forerun.contracts import AttentionShape, ChainRequest, HeadParts, LayerShape
from forerun.core import Batch, Draft, Drawing
from forerun.errors import CheckpointError
from forerun.models.cpu.cache import CpuCache, TypedErrors, new_native_cache
from forerun.models.cpu.weights import ACTIVATIONS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forerun._native.kernels import Decoder, ThreadPool

_ERRORS, _HEAD_ERRORS = TypedErrors("a module"), TypedErrors("a head")


@dataclass(frozen=True)
class CpuModules:
    """Builds modules on the kernels; implements `forerun.contracts.Modules`.

    Hidden states are float32. The result for a token depends only on that token and, in attention,
    on its path, bit for bit: not on the width, the batch or the number of threads.

    Args:
        pool: the threads to run on.
        precision: precision of the matrices: `fp32`, `bf16`, `int8` or `int4`.
        level: the instruction set; empty for the best available.
        layers: precision of decoder layers; empty for `precision`.
        decoder: model whose embedding is read by a head without one of its own.
    """

    pool: ThreadPool
    precision: str
    level: str = ""
    layers: str = ""
    decoder: Decoder | None = None

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> CpuModule:
        """A linear map by `weight` [rows, cols] and `bias` [rows] of [..., cols], normed by `norm` [cols].

        Raises:
            CheckpointError: for weights that do not fit each other or are not finite.
        """
        parts = (_array(weight), _array(bias), _array(norm), eps, self.precision)
        native = _built(_native.kernels.Linear, self.pool, *parts, level=self.level)
        rows = len(weight)
        return CpuModule(self.pool, native.run, lambda _: rows, native)

    def norm(self, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6) -> CpuModule:
        """A root mean square norm; with a bias, a layer norm.

        Raises:
            CheckpointError: for weights that do not fit each other or are not finite.
        """
        native = _built(_native.kernels.Norm, _array(weight), _array(bias), eps, level=self.level)
        return CpuModule(self.pool, native.run, lambda size: size, native)

    def activation(self, name: str, gated: bool = False) -> CpuModule:
        """The activation of an MLP, from [..., n] to the same shape.

        Gated, it maps [..., 2n] to [..., n]: the function of the first half, times the second half.
        """

        def run(pool: ThreadPool, states: Any, out: Any) -> None:
            _native.kernels.activate(pool, ACTIVATIONS[name], states, out, level=self.level)

        return CpuModule(self.pool, run, lambda size: size // 2 if gated else size)

    def attention(self, shape: AttentionShape, weights: Mapping[str, Tensor]) -> CpuAttention:
        """A self-attention with its own caches, in fp32 for fp32, otherwise in bf16.

        Args:
            shape: shape of the attention.
            weights: weights by name, see `AttentionShape`.

        Raises:
            CheckpointError: for weights that do not fit each other or are not finite.
        """
        return CpuAttention(self.pool, self._layer(shape, weights), len(weights["output"]))

    def layer(self, shape: LayerShape, weights: Mapping[str, Tensor]) -> CpuLayer:
        """A decoder layer that runs in one call, with caches as in `attention`.

        Its result equals that of its parts one by one, bit for bit.

        Args:
            shape: shape of the layer.
            weights: weights by name, see `LayerShape`.

        Raises:
            CheckpointError: for weights that do not fit each other or are not finite.
        """
        native = self._layer(shape, weights, ACTIVATIONS[shape.activation])
        return CpuLayer(self.pool, native, len(weights["output"]))

    def head_chains(self, parts: HeadParts) -> CpuHeadChains:
        """Drafting of whole chains, in one call, with a head made of modules of this kind.

        Raises:
            CheckpointError: for parts that do not fit each other.
        """
        table = _array(parts.embedding)
        try:
            native = _native.kernels.HeadChains(
                [_native_part(norm) for norm in parts.state_norms],
                _native_part(parts.fuse),
                [_native_part(layer) for layer in parts.layers],
                None if parts.norm is None else _native_part(parts.norm),
                _native_part(parts.output),
                parts.token_ids,
                self.decoder if table is None else table,
                parts.vocab_size,
            )
        except ValueError as error:
            raise CheckpointError(f"a head that the CPU kernels cannot run: {error}.") from None
        return CpuHeadChains(self.pool, native, parts.vocab_size)

    def _layer(
        self, shape: AttentionShape, weights: Mapping[str, Tensor], activation: str = ""
    ) -> Any:
        """The kernels' layer; with the MLP of an activation, or the attention alone if it is empty."""
        values = {**vars(shape), "window": shape.window or 0}
        arrays = {name: _array(weight) for name, weight in weights.items()}
        made = _native.kernels.Layer
        precision = (self.layers if activation else "") or self.precision
        parts = (values, arrays, activation, precision)
        return _built(made, self.pool, *parts, level=self.level)


@dataclass(frozen=True)
class CpuModule:
    """A linear map, a norm or an activation on the kernels; implements `forerun.contracts.Module`.

    Args:
        pool: the threads to run on.
        run: the kernels' function, of the pool, hidden states and the memory of the results.
        width: numbers that it makes of so many.
        native: the kernels' object; None for an activation.
    """

    pool: ThreadPool
    run: Callable[..., None]
    width: Callable[[int], int]
    native: Any = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map [..., n] to [..., width(n)]."""
        out = torch.empty(*hidden.shape[:-1], self.width(hidden.shape[-1]))
        with _ERRORS:
            self.run(self.pool, _capsule(hidden), to_dlpack(out))
        return out


@dataclass(frozen=True)
class _KeepsText:
    """A module on the kernels with a cache of one layer.

    Raises:
        CacheError: when it is called, for a batch that contradicts the cache, or a full row.
        ConfigError: for hidden states of another shape.
    """

    pool: ThreadPool
    native: Any
    hidden_size: int

    def new_cache(self, rows: int, capacity: int) -> CpuCache:
        """An empty cache of `rows` rows of `capacity` tokens each.

        Raises:
            CacheError: for fewer than one row or token.
            MemoryLimitError: if it does not fit into memory.
        """
        return CpuCache(new_native_cache(self.native, rows, capacity, "a module"))

    def _run(self, inputs: Sequence[Tensor], batch: Batch, cache: CpuCache) -> Tensor:
        make = torch.empty if batch.even else torch.zeros
        out = make(*inputs[0].shape[:-1], self.hidden_size)
        given, mask = [_capsule(states) for states in inputs], batch.tree_mask
        with _ERRORS:
            self.native.run(
                self.pool, cache.native, batch.rows, batch.positions, given, mask, to_dlpack(out)
            )
        return out


class CpuAttention(_KeepsText):
    """Self-attention on the kernels; implements `forerun.contracts.Attention`."""

    def __call__(self, hidden: Tensor, batch: Batch, cache: CpuCache) -> Tensor:
        """Run the tokens of a batch and append their keys and values."""
        return self._run([hidden], batch, cache)


class CpuLayer(_KeepsText):
    """A decoder layer on the kernels; implements `forerun.contracts.Layer`."""

    def __call__(self, inputs: Sequence[Tensor], batch: Batch, cache: CpuCache) -> Tensor:
        """Run the tokens of a batch and append their keys and values."""
        return self._run(inputs, batch, cache)


def _array(weight: Tensor | None) -> NDArray[np.float32] | None:
    if weight is None:
        return None
    array: NDArray[np.float32] = weight.detach().float().cpu().contiguous().numpy()
    return array


def _capsule(hidden: Tensor) -> Any:
    """Hidden states in the form that the kernels read."""
    if hidden.dtype is not torch.float32 or hidden.requires_grad:
        hidden = hidden.detach().float()
    return to_dlpack(hidden.contiguous())


def _built(make: Callable[..., Any], *arguments: Any, level: str) -> Any:
    try:
        return make(*arguments, level=level)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"weights that the CPU kernels cannot run: {error}.") from None


def _native_part(part: Any) -> Any:
    """The kernels' object of a module that this builder has made."""
    return part.native


def native_chain(chain: ChainRequest, head: Any = None) -> Any:
    """A chain in the form that the kernels take, with an output head of its own if there is one."""
    text, params = chain.text, chain.text.params
    return _native.kernels.DraftChain(
        chain.row,
        chain.pending,
        chain.limit,
        list(text.stop_token_ids),
        chain.drawing.value,
        (params.temperature, params.top_k, params.top_p, params.min_p),
        text.seed % 2**64,
        len(text),
        head,
        chain.least,
    )


def rows_to_fill(chains: Sequence[ChainRequest], vocab_size: int) -> list[Tensor]:
    """Memory for the rows that each chain's tokens are drawn from, [limit, V]; empty if none are sampled."""
    return [
        torch.empty(chain.limit if chain.drawing is Drawing.SAMPLED else 0, vocab_size)
        for chain in chains
    ]


def drafts_of(drafted: Sequence[Sequence[int]], probs: Sequence[Tensor]) -> list[Draft]:
    """The drafts of some chains, with the part of their rows that was filled."""
    return [
        Draft.chain(tokens, rows[: len(tokens)] if len(rows) and tokens else None)
        for tokens, rows in zip(drafted, probs, strict=True)
    ]


class CpuHeadChains:
    """A trained head that drafts chains; implements `forerun.contracts.HeadChains`.

    Args:
        pool: the threads to run on.
        native: the kernels' object.
        vocab_size: the target's.
    """

    def __init__(self, pool: ThreadPool, native: Any, vocab_size: int) -> None:
        self._pool, self._native, self._vocab_size = pool, native, vocab_size

    def draft(
        self, caches: Sequence[Any], requests: Sequence[ChainRequest], states: Sequence[Tensor]
    ) -> list[Draft]:
        probs = rows_to_fill(requests, self._vocab_size)
        with _HEAD_ERRORS:
            drafted = self._native.draft(
                self._pool,
                [cache.native for cache in caches],
                [native_chain(request) for request in requests],
                [some.float().contiguous().numpy() for some in states],
                [rows.numpy() for rows in probs],
            )
        return drafts_of(drafted, probs)
