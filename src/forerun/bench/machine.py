"""The machine's limits: streaming reads and multiply-adds, measured beside the models."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from forerun import _native
from forerun.errors import ConfigError
from forerun.models.cpu import set_num_threads, shared_pool
from forerun.models.placement import DTYPES
from forerun.models.processor_caches import data_caches, last_level_cache

TIMES_THE_CACHE = 4
"""A stream of this many times the last-level cache comes from memory."""
# Of a thread: small enough for any first-level cache.
_SMALLEST = 2**14
# A measurement reads this much in all, in passes.
_ENOUGH = 2**26
_MOST_PASSES = 2000
MEMORY = "memory"


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
        bandwidths: bytes a second of each read of the whole stream.
        rates: multiply-adds a second of each measurement, by precision.
    """

    cache: int = field(default_factory=lambda: last_level_cache())
    bandwidths: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pool = shared_pool()
        self._stream = _native.kernels.Stream(TIMES_THE_CACHE * self.cache)

    @property
    def stream_bytes(self) -> int:
        """Bytes of the stream."""
        return int(self._stream.nbytes)

    def read(self) -> float:
        """Bytes a second of one read of the whole stream."""
        rate: float = self.stream_bytes / self._stream.read(self._pool, self.stream_bytes, 1)
        self.bandwidths.append(rate)
        return rate

    def read_like(self, count: int) -> float:
        """Bytes per second of reading `count` bytes repeatedly: those that fit stay in the cache."""
        if count >= self.stream_bytes:
            return self.read()
        passes = max(_ENOUGH // count, min(20, self.stream_bytes // count))
        times = max(2, min(_MOST_PASSES, passes))
        self._stream.read(self._pool, count, 1)
        return count / float(self._stream.read(self._pool, count, times))

    def sizes(self) -> list[int]:
        """Working sets to read, from what the nearest cache holds to the whole stream, doubling."""
        first = _SMALLEST * int(self._pool.threads)
        steps = range((self.stream_bytes // first).bit_length())
        return [first << step for step in steps]

    def sources(self) -> dict[str, int]:
        """Caches and memory, the nearest first, each with the largest working set that this machine's threads
        hold there."""
        levels = {f"L{c.level}": c.of_threads(int(self._pool.threads)) for c in data_caches()}
        return {**levels, MEMORY: self.stream_bytes}

    def multiply(self, precision: str) -> float | None:
        """Multiply-adds a second of the precision's instruction; None if the processor lacks it."""
        name = instruction(precision)
        rate = float(_native.kernels.peak_rate(self._pool, name))
        if rate:
            self.rates.setdefault(name, []).append(rate)
        return rate or None

    def as_dict(self) -> dict[str, Any]:
        """Medians and the best, ready for JSON; bandwidths in GB/s."""
        for _ in range(3 - len(self.bandwidths)):
            self.read()
        return {
            "last_level_cache_bytes": self.cache,
            "stream_bytes": self.stream_bytes,
            "bandwidth_gigabytes_per_second": statistics.median(self.bandwidths) / 1e9,
            "best_bandwidth_gigabytes_per_second": max(self.bandwidths) / 1e9,
            "multiply_adds_per_second": {
                name: statistics.median(rates) for name, rates in self.rates.items()
            },
        }
