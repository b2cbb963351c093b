"""What one forward pass costs on a device, from the model's dimensions: the roofline model.

Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009. A part of a forward
takes as long as its memory traffic or its arithmetic, whichever is longer. The parts run one after
another, so their times add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from forerun.checks import normalize, number, one_of, optional, whole
from forerun.theory.devices import PRECISIONS, Device, Precision
from forerun.theory.inputs import Floats, lengths, together
from forerun.theory.shapes import ModelShape


@dataclass(frozen=True)
class Work:
    """Memory traffic and arithmetic of a part of a forward, arrays of one shape."""

    bytes_moved: Floats
    flops: Floats

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes_moved + other.bytes_moved, self.flops + other.flops)

    @property
    def intensity(self) -> Floats:
        """FLOP a byte; left of the ridge point the memory is what takes the time."""
        return np.asarray(self.flops / self.bytes_moved)


@dataclass(frozen=True)
class RooflineCosts:
    """Seconds of a forward of a model on a device, at the limits that the maker publishes.

    Left out, as small: activations, norms, written keys and values, communication beyond
    `parallel_efficiency`, sampling. Whatever else takes time is `overhead`.

    Args:
        shape: the model.
        device: what it runs on.
        precision: of weights and arithmetic, a name in `PRECISIONS`.
        cache_precision: of keys and values; 16 bits, or 32 with weights in fp32.
        overhead: seconds that every forward takes besides: launches, the host.
        num_devices: that share the work evenly, as with tensor parallelism.
        parallel_efficiency: share of their joint limits that several devices reach; assumed.

    Raises:
        ConfigError: for a number out of range, or a precision that the device has no peak for.
        UnknownNameError: for an unknown precision.
    """

    shape: ModelShape
    device: Device
    precision: str = "bf16"
    cache_precision: str | None = None
    overhead: float = 0.0
    num_devices: int = 1
    parallel_efficiency: float = 0.8

    def __post_init__(self) -> None:
        checks = {
            "precision": one_of(PRECISIONS),
            "cache_precision": optional(one_of(PRECISIONS)),
            "overhead": number(0.0, 3600.0),
            "num_devices": whole(1, 1 << 20),
            "parallel_efficiency": number(0.0, 1.0, above=True),
        }
        normalize(self, checks)
        self.device.peak(self._weights)

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Of one forward of `num_tokens` new tokens in each of `batch_size` sequences.

        Args:
            num_tokens, batch_size: integers of at least 1; arrays broadcast.
            context: tokens of each sequence in the cache, an integer.

        Raises:
            ConfigError: for other numbers.
        """
        work = self.work(num_tokens, batch_size, context)
        return np.asarray(self.overhead + sum(self._seconds_of(part) for part in work))

    def work(
        self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike
    ) -> tuple[Work, Work]:
        """Of the layers with weights, and of the attention over the cache."""
        tokens, batch, cached = together(
            lengths("num_tokens", num_tokens, shortest=1),
            lengths("batch_size", batch_size, shortest=1),
            lengths("context", context),
        )
        rows = tokens * batch.astype(np.float64)
        layers = Work(
            self._weights.bytes_per_value * self._parameters_read(rows),
            2.0 * self.shape.active_parameters * rows,
        )
        attention = Work(
            self.cache_bytes(batch, cached), self.shape.attention_flops * rows * cached
        )
        return layers, attention

    @property
    def weight_bytes(self) -> float:
        """Memory of the weights."""
        return self.shape.parameters * self._weights.bytes_per_value

    def cache_bytes(self, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Memory of the keys and values of so many sequences."""
        values = self.shape.cache_values_per_token * np.asarray(batch_size, float)
        return np.asarray(values * np.asarray(context, float) * self._cache.bytes_per_value)

    @property
    def capacity(self) -> float | None:
        """Bytes of all devices' memory together; None where it is not known."""
        return None if self.device.capacity is None else self.device.capacity * self.num_devices

    @property
    def ridge_point(self) -> float:
        """FLOP a byte from which on arithmetic takes longer than memory."""
        return self.device.ridge_point(self._weights)

    @cached_property
    def _weights(self) -> Precision:
        return PRECISIONS[self.precision]

    @cached_property
    def _cache(self) -> Precision:
        usual = "fp32" if self.precision == "fp32" else "fp16"
        return PRECISIONS[self.cache_precision or usual]

    def _parameters_read(self, rows: Floats) -> Floats:
        """By a forward of so many tokens: shared ones once, experts as far as they are hit.

        With tokens routed independently and evenly, an expert is missed by all of them with
        probability (1 - k/E)^rows. Neighbours of one text agree more, so this is the most.
        """
        shape = self.shape
        if not shape.num_experts:
            return np.full_like(rows, float(shape.shared_parameters))
        missed = (1.0 - shape.experts_per_token / shape.num_experts) ** rows
        hit = shape.num_experts * (1.0 - missed)
        return shape.shared_parameters + shape.num_layers * shape.expert_parameters * hit

    def _seconds_of(self, part: Work) -> Floats:
        several = self.num_devices > 1
        share = self.num_devices * self.parallel_efficiency if several else 1.0
        return np.maximum(
            part.bytes_moved / (share * self.device.bandwidth),
            part.flops / (share * self.device.peak(self._weights)),
        )
