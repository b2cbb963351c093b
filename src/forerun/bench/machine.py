"""The machine's limits: streaming reads and multiply-adds, measured beside the models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun import _native
from forerun.bench.forwards import forward_bytes
from forerun.bench.rows import MeasuredPair
from forerun.contracts import CausalLM
from forerun.errors import ConfigError
from forerun.models.cpu import set_num_threads, shared_pool
from forerun.models.placement import DTYPES
from forerun.models.processor_caches import last_level_cache

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
    """The precision whose instruction multiplies numbers of this one: int8's serves all quantized
    weights, fp32's all floats but bf16."""
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


@dataclass
class Bandwidth:
    """Bytes that a token reads, and the rate at which a plain loop reads as many.

    Args:
        bytes_per_token: bytes that a token of a single request reads, in the middle of its output.
        machine: reader of as many bytes; None where nothing measures it, as on a GPU.
        reads: measured bytes per second.
    """

    bytes_per_token: float
    machine: Machine | None = None
    reads: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, model: CausalLM, context: int) -> Bandwidth:
        """Bandwidth of a model that decodes after `context` tokens.

        Raises:
            CheckpointError: for a model whose shape is unknown.
        """
        count = forward_bytes(model, 1, context)
        if model.device.type != "cpu" or not _native.AVAILABLE:
            return cls(count)
        # The buffer holds these bytes, or what no cache holds.
        cache = min(last_level_cache(), int(count) // TIMES_THE_CACHE + 1)
        return cls(count, Machine(cache))

    def measure(self) -> None:
        """Measure the rate once more."""
        if self.machine is not None:
            self.reads.append(self.machine.read_like(int(self.bytes_per_token)))

    def facts(self, rows: Sequence[MeasuredPair]) -> dict[str, Any]:
        """Rates that plain runs of single requests reach, ready for JSON; empty without such runs."""
        sides = [row.plain for row in rows if row.plain is not None and row.key.batch == 1]
        gaps = [gap for side in sides for gap in side.gaps]
        if not gaps:
            return {}
        rate = 1e3 * len(gaps) / sum(gaps)
        facts: dict[str, Any] = {
            "tokens_per_second": rate,
            "bytes_per_token": round(self.bytes_per_token),
            "gigabytes_per_second": rate * self.bytes_per_token / 1e9,
        }
        if self.reads:
            read = statistics.median(self.reads)
            facts["read_gigabytes_per_second"] = read / 1e9
            facts["share_of_read_bandwidth"] = rate * self.bytes_per_token / read
        return facts

    def sentence(self, rows: Sequence[MeasuredPair]) -> str:
        """The rates in words; empty without plain runs of single requests."""
        facts = self.facts(rows)
        if not facts:
            return ""
        text = (
            f"plain decoding: {facts['tokens_per_second']:.0f} tokens/s after the first one, "
            f"{self.bytes_per_token / 1e6:.0f} MB a token, {facts['gigabytes_per_second']:.1f} GB/s"
        )
        if self.reads:
            text += (
                f"; a loop that only reads as many bytes reaches "
                f"{facts['read_gigabytes_per_second']:.1f} GB/s on the same threads"
            )
        return text
