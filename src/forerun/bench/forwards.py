"""Times of forwards of a model, as the engine calls them, and the machine's limits beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter

import torch

from forerun import _native
from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.costs.forwards import Traffic
from forerun.costs.precision import bytes_per_value
from forerun.costs.shapes import read_shape
from forerun.errors import ConfigError
from forerun.models.cpu import CpuModel, set_num_threads, shared_pool
from forerun.models.hf import HFModel
from forerun.models.run_config import DTYPES
from forerun.models.running import PREFILL_CHUNK, prefill
from forerun.models.transformer import Transformer
from forerun.processor import last_level_cache


def traffic_of(model: CausalLM) -> Traffic:
    """Bytes and FLOP of a model's forwards.

    Raises:
        CheckpointError: for a model of transformers whose dimensions are unknown.
    """
    if isinstance(model, HFModel):
        dimensions = read_shape(model.model.config, model.name)
        return Traffic(dimensions, model.dtype.itemsize, model.dtype.itemsize)
    assert isinstance(model, CpuModel | Transformer)
    shape = model.shape
    if isinstance(model, Transformer):
        wide = model.dtype.itemsize
        weights = float(wide)
    else:
        wide = 4 if model.precision == "fp32" else 2
        tables = 0 if shape.tied else shape.vocab_size * shape.hidden_size
        weights = weight_bytes(model) / (shape.parameters - tables)
    return Traffic(shape, weights, bytes_per_value(model.kv_dtype, shape.head_dim, wide))


def weight_bytes(model: CpuModel) -> int:
    """Bytes of packed weights that every forward with logits reads: all but embedding tables."""
    shape, wide = model.shape, 4 if model.precision == "fp32" else 2
    tables = 0 if shape.tied else shape.vocab_size
    if shape.learned_positions:
        tables += shape.max_context
    return model.weight_bytes - tables * shape.hidden_size * wide


def forward_bytes(model: CausalLM, n: int, context: int) -> float:
    """Bytes that a forward of `n` tokens after `context` others reads."""
    layers, attention = traffic_of(model).alone(n, context)
    return float(layers.bytes_moved + attention.bytes_moved)


def multiply_adds(model: CausalLM, n: int, context: int, *, head: bool = True) -> float:
    """Multiply-adds of a forward of `n` tokens after `context` others, attention included.

    Args:
        head: whether there are logits.
    """
    traffic = traffic_of(model)
    layers, attention = traffic.alone(n, context)
    left_out = 0 if head else n * traffic.shape.vocab_size * traffic.shape.hidden_size
    return float(layers.flops + attention.flops) / 2 - left_out


SAMPLE_SECONDS = 0.01
"""A sample repeats shorter forwards for about this long."""
_MOST_REPEATS = 20
_FEWEST_PAIRS = 3


class Forwards:
    """One row of a cache that is filled to `context` tokens before each forward.

    Args:
        model: to time.
        context: tokens in the cache before a forward.
        longest: tokens of a forward at most.
    """

    def __init__(self, model: CausalLM, context: int, longest: int) -> None:
        self.model, self.context = model, context
        # Equal tokens would all call the same experts of a mixture, which then stay in the processor's cache;
        # drawn ones call more of them than neighbours in a text.
        self._drawn = partial(Random(0).choices, range(model.vocab_size))
        self.cache = model.new_cache(1, context + longest)
        if isinstance(model, CpuModel):
            _native.kernels.fill_cache(self.cache.native, 0, context)  # type: ignore[attr-defined]
        else:
            prefill(model, self.cache, 0, self._drawn(k=context))

    def once(self, n: int) -> float:
        """Seconds of one forward of `n` tokens."""
        token_ids = self._drawn(k=n)
        started = perf_counter()
        self.model.forward(Batch.after(self.cache, [0], [token_ids]), self.cache)
        _finish(self.model)
        seconds = perf_counter() - started
        self.cache.trim(0, self.context)
        return seconds

    def pairs(self, n: int) -> list[tuple[float, float]]:
        """Seconds of forwards of one token and of `n`, several pairs in a row, after a first one."""
        first = self.once(1) + self.once(n)
        repeats = max(_FEWEST_PAIRS, min(_MOST_REPEATS, int(SAMPLE_SECONDS / first)))
        return [(self.once(1), self.once(n)) for _ in range(repeats)]


def prefill_seconds(model: CausalLM, tokens: int = PREFILL_CHUNK) -> float:
    """Seconds of the keys and values of a prompt, without logits."""
    cache = model.new_cache(1, tokens)
    ids = Random(0).choices(range(model.vocab_size), k=tokens)
    started = perf_counter()
    prefill(model, cache, 0, ids)
    _finish(model)
    return perf_counter() - started


def _finish(model: CausalLM) -> None:
    """Wait for a device that works on its own."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    elif model.device.type == "mps":
        torch.mps.synchronize()


TIMES_THE_CACHE = 4
"""A stream of this many times the last-level cache comes from memory."""
# A measurement reads this much in all, in passes.
_ENOUGH = 2**26
_MOST_PASSES = 2000


def use_threads(threads: int | None) -> int:
    """Have the kernels use this many threads, or as many as torch would; returns how many.

    Raises:
        ConfigError: without the kernels, or for a number outside 1 to the number of cores.
    """
    if not _native.AVAILABLE:
        raise ConfigError(f"forerun's CPU kernels are not available: {_native.REASON}.")
    if threads is not None:
        set_num_threads(threads)
    return int(shared_pool().threads)


def instruction(precision: str) -> str:
    """Precision whose instruction multiplies these numbers: int8 for all quantized weights, fp32 for all
    floats but bf16."""
    if precision == "bf16":
        return precision
    return "fp32" if precision in DTYPES else "int8"


@dataclass
class Machine:
    """Reads and multiply-adds with the threads that models run on.

    Args:
        cache: bytes of the last-level cache.
    """

    cache: int = field(default_factory=lambda: last_level_cache())

    def __post_init__(self) -> None:
        self._pool = shared_pool()
        self._stream = _native.kernels.Stream(TIMES_THE_CACHE * self.cache)

    @property
    def stream_bytes(self) -> int:
        """Bytes of the stream."""
        return int(self._stream.nbytes)

    def read(self) -> float:
        """Bytes a second of one read of the whole stream."""
        return self.stream_bytes / float(self._stream.read(self._pool, self.stream_bytes, 1))

    def read_like(self, count: int) -> float:
        """Bytes per second of reading `count` bytes repeatedly: those that fit stay in the cache."""
        if count >= self.stream_bytes:
            return self.read()
        passes = max(_ENOUGH // count, min(20, self.stream_bytes // count))
        times = max(2, min(_MOST_PASSES, passes))
        self._stream.read(self._pool, count, 1)
        return count / float(self._stream.read(self._pool, count, times))

    def multiply(self, precision: str) -> float | None:
        """Multiply-adds a second of the precision's instruction; None if the processor lacks it."""
        return float(_native.kernels.peak_rate(self._pool, instruction(precision))) or None
