"""Roofline model of a forward pass: its cost on hardware, from the model's dimensions.

Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009. A part of a forward takes
as long as its memory traffic or its arithmetic, whichever is longer. The parts run one after another, so
their times add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from forerun.costs.hardware import Hardware
from forerun.costs.precision import PRECISIONS
from forerun.costs.shapes import ModelShape
from forerun.options import known, options
from forerun.theory.inputs import Floats, lengths, together

PrecisionName = Annotated[str, known("precision", lambda: PRECISIONS)]


@dataclass(frozen=True)
class Work:
    """Memory traffic and arithmetic of a part of a forward, arrays of one shape."""

    bytes_moved: Floats
    flops: Floats

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes_moved + other.bytes_moved, self.flops + other.flops)

    @property
    def intensity(self) -> Floats:
        """FLOP per byte; below the ridge point, memory traffic takes longer."""
        return np.asarray(self.flops / self.bytes_moved)


@dataclass(frozen=True)
class Limits:
    """Limits on a forward's memory traffic and arithmetic.

    Args:
        bandwidth: bytes per second.
        peak: FLOP per second.
    """

    bandwidth: float
    peak: float

    @property
    def ridge_point(self) -> float:
        """FLOP per byte above which arithmetic takes longer than memory traffic."""
        return self.peak / self.bandwidth

    def seconds(self, *parts: Work) -> Floats:
        """Seconds of parts of a forward that run one after another."""
        times = [
            np.maximum(part.bytes_moved / self.bandwidth, part.flops / self.peak) for part in parts
        ]
        return np.asarray(sum(times))


@dataclass(frozen=True)
class Traffic:
    """Memory traffic and arithmetic of a model's forwards.

    Args:
        shape: dimensions of the model.
        bytes_per_weight, bytes_per_cached: bytes of a weight, and of a number in the KV cache.
    """

    shape: ModelShape
    bytes_per_weight: float
    bytes_per_cached: float

    def work(
        self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike
    ) -> tuple[Work, Work]:
        """Work of the layers' weights, and of the attention over the cache, as arrays.

        Args:
            num_tokens, batch_size: integers of at least 1; arrays broadcast.
            context: tokens of each request in the cache, an integer.

        Raises:
            ConfigError: for other numbers.
        """
        tokens, batch, cached = together(
            lengths("num_tokens", num_tokens, shortest=1),
            lengths("batch_size", batch_size, shortest=1),
            lengths("context", context),
        )
        rows = tokens * batch.astype(np.float64)
        layers = Work(
            self.bytes_per_weight * self._parameters_read(rows),
            2.0 * self.shape.active_parameters * rows,
        )
        attention = Work(
            self.cache_bytes(batch, cached), self.shape.attention_flops * rows * cached
        )
        return layers, attention

    def alone(self, num_tokens: int, context: int) -> tuple[Work, Work]:
        """Work as in `work` for a single request, whose new tokens also see each other."""
        return self.work(num_tokens, 1, context + (num_tokens + 1) // 2)

    def cache_bytes(self, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Bytes of the keys and values of `batch_size` requests with `context` tokens each."""
        values = self.shape.cache_values_per_token * np.asarray(batch_size, float)
        return np.asarray(values * np.asarray(context, float) * self.bytes_per_cached)

    def _parameters_read(self, rows: Floats) -> Floats:
        """Number of parameters that a forward of `rows` tokens reads: experts if a token calls them."""
        shape = self.shape
        experts = shape.num_layers * shape.expert_parameters
        return shape.shared_parameters + experts * shape.experts_read(rows)


@options
class RooflineCosts:
    """Costs of a model's forwards on hardware, at the limits that its maker publishes.

    Small parts are left out: activations, norms, written keys and values, communication beyond
    `parallel_efficiency`, sampling. All other time is `overhead`.

    Raises:
        ConfigError: for a number out of range, or a precision that the hardware has no peak for.
        UnknownNameError: for an unknown precision.
    """

    shape: ModelShape = Field(description="The model.")
    hardware: Hardware = Field(description="What it runs on.")
    precision: PrecisionName = Field(default="bf16", description="Of weights and arithmetic.")
    cache_precision: PrecisionName | None = Field(
        default=None, description="Of keys and values; None: 16 bits, or 32 with weights in fp32."
    )
    overhead: float = Field(
        default=0.0, ge=0.0, le=3600.0, description="Seconds of launches and the host a forward."
    )
    num_devices: int = Field(
        default=1,
        ge=1,
        le=1 << 20,
        description="That share the work evenly, as in tensor parallelism.",
    )
    parallel_efficiency: float = Field(
        default=0.8,
        gt=0.0,
        le=1.0,
        description="Share of their joint limits that they reach; assumed.",
    )

    def __post_init__(self) -> None:
        self.hardware.peak(self.precision)

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of one forward of `num_tokens` new tokens in each of `batch_size` requests.

        Args:
            num_tokens, batch_size: integers of at least 1; arrays broadcast.
            context: tokens of each request in the cache, an integer.

        Raises:
            ConfigError: for other numbers.
        """
        work = self.traffic.work(num_tokens, batch_size, context)
        return np.asarray(self.overhead + self.limits.seconds(*work))

    @property
    def traffic(self) -> Traffic:
        """Memory traffic and arithmetic of the model's forwards."""
        usual = "fp32" if self.precision == "fp32" else "fp16"
        cached = PRECISIONS[self.cache_precision or usual]
        return Traffic(
            self.shape, PRECISIONS[self.precision].bytes_per_value, cached.bytes_per_value
        )

    @property
    def limits(self) -> Limits:
        """Limits of all devices together."""
        alone = self.num_devices == 1
        share = 1.0 if alone else self.num_devices * self.parallel_efficiency
        return Limits(share * self.hardware.bandwidth, share * self.hardware.peak(self.precision))

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights."""
        return self.shape.parameters * PRECISIONS[self.precision].bytes_per_value

    @property
    def capacity(self) -> float | None:
        """Bytes of all devices' memory together; None if it is not known."""
        return None if self.hardware.capacity is None else self.hardware.capacity * self.num_devices
