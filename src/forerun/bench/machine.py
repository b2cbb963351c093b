"""The machine's limits: streaming reads and multiply-adds, measured beside the models."""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun import _native
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
