"""Forwards below the roof: how many FLOP a byte each computes, what bounds it, and how long it takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.costs.forwards import Limits, Traffic

FREE = 1.2
"""Checking is as good as free while it takes at most this many times a plain forward: a round that checks
one token or more for that pays if the first is accepted one time in five, and two runs on a shared
machine may differ by half of it."""
TARGET, DRAFT = "target", "draft"


@dataclass(frozen=True)
class Forward:
    """A forward of `n` tokens of one request.

    Args:
        role: target or draft.
        model, precision, n, context: of the forward.
        bytes, flops: that it reads and computes.
        intensity: FLOP a byte.
        bandwidth, peak: of the roof above it, in bytes and FLOP a second.
        bound: memory or arithmetic: what takes longer.
        predicted_seconds, predicted_ratio: by the roofline: the time, and that over one token's.
        seconds, best_seconds: measured: the median over turns, and the best; None if nothing was run.
        ratio: the median over turns of the time over that of one token just before.
        share_of_bandwidth: of the rate at which the same turn read as many bytes; the median.
        share_of_peak: of the multiply-adds of the same turn; the median.
        from_memory: whether the weights are at least four times the last-level cache; None if unknown.
    """

    role: str
    model: str
    precision: str
    n: int
    context: int
    bytes: float
    flops: float
    intensity: float
    bandwidth: float
    peak: float
    bound: str
    predicted_seconds: float
    predicted_ratio: float
    seconds: float | None = None
    best_seconds: float | None = None
    ratio: float | None = None
    share_of_bandwidth: float | None = None
    share_of_peak: float | None = None
    from_memory: bool | None = None

    @property
    def limits(self) -> Limits:
        """The roof above it."""
        return Limits(self.bandwidth, self.peak)

    @property
    def time(self) -> float:
        """Measured, or else predicted."""
        return self.predicted_seconds if self.seconds is None else self.seconds

    @property
    def rise(self) -> float:
        """The time over that of one token, measured or else predicted."""
        return self.predicted_ratio if self.ratio is None else self.ratio


@dataclass(frozen=True)
class Turn:
    """Times of forwards by their tokens, as they are and over that of one token just before, and the
    limits of the same moment."""

    seconds: dict[int, float]
    ratios: dict[int, float]
    limits: Limits


@dataclass(frozen=True)
class Subject:
    """A model whose forwards are placed below the roof.

    Args:
        role: target or draft.
        name, precision: of the model.
        traffic: of its forwards.
        overhead: seconds that every forward takes beside.
    """

    role: str
    name: str
    precision: str
    traffic: Traffic
    overhead: float = 0.0

    def row(self, n: int, context: int, limits: Limits, turns: Sequence[Turn] = ()) -> Forward:
        """A forward of `n` tokens after `context` others."""
        work = self.traffic.alone(n, context)
        total = work[0] + work[1]
        read, flops = float(total.bytes_moved), float(total.flops)
        predicted = self.overhead + float(limits.seconds(*work))
        alone = self.overhead + float(limits.seconds(*self.traffic.alone(1, context)))
        times = [turn.seconds[n] for turn in turns]
        return Forward(
            role=self.role,
            model=self.name,
            precision=self.precision,
            n=n,
            context=context,
            bytes=read,
            flops=flops,
            intensity=flops / read,
            bandwidth=limits.bandwidth,
            peak=limits.peak,
            bound="memory" if flops / read < limits.ridge_point else "arithmetic",
            predicted_seconds=predicted,
            predicted_ratio=predicted / alone,
            seconds=statistics.median(times) if times else None,
            best_seconds=min(times, default=None),
            ratio=_median([turn.ratios[n] for turn in turns]),
            share_of_bandwidth=_median(
                [read / turn.seconds[n] / turn.limits.bandwidth for turn in turns]
            ),
            share_of_peak=_median([flops / turn.seconds[n] / turn.limits.peak for turn in turns]),
        )


def free_tokens(rows: Sequence[Forward], *, predicted: bool = False) -> int:
    """The most tokens that are checked for at most FREE times the time of one, with all fewer ones.

    Args:
        rows: of one model and context, by rising tokens.
        predicted: by the roofline, where there are measurements too.
    """
    most = 1
    for row in rows:
        if (row.predicted_ratio if predicted else row.rise) > FREE:
            break
        most = row.n
    return most


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
