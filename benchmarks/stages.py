"""Speed-ups of requests in a row by their places: how a policy that learns begins, and where it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

STAGES = {"first": range(1, 2), "fifth": range(5, 6), "5 to 12": range(5, 13)}
"""Places of requests in their row, by the column that they are in."""


@dataclass(frozen=True)
class Measured:
    """Plain seconds of a request over those of policy auto and of fixed lengths.

    Args:
        place: of the request in its row, from 1.
    """

    place: int
    auto: float
    fixed: Mapping[int, float]


@dataclass(frozen=True)
class Stage:
    """The requests at some places: medians, and what auto reached of the best fixed setting."""

    auto: float
    least: float
    most: float
    fixed: float
    pairs: int

    @property
    def share(self) -> float:
        return self.auto / max(1.0, self.fixed)

    @property
    def cells(self) -> list[str]:
        """Cells of a table."""
        spread = f"{self.auto:.2f} ({self.least:.2f}–{self.most:.2f}; {self.pairs})"
        return [spread, f"{self.fixed:.2f}", f"{self.share:.1%}"]


def best_length(measured: Sequence[Measured]) -> int:
    """The length that is best over all requests; 0 where none beats plain decoding."""
    speed = {
        length: median(times.fixed[length] for times in measured) for length in measured[0].fixed
    }
    best = max(speed, key=lambda length: speed[length])
    return best if speed[best] > 1.0 else 0


def stages(measured: Sequence[Measured], length: int) -> dict[str, Stage]:
    """The columns of a row, where there are requests for them."""
    columns = {}
    for name, places in STAGES.items():
        of = [times for times in measured if times.place in places]
        if of:
            auto = [times.auto for times in of]
            fixed = median(times.fixed[length] for times in of) if length else 1.0
            columns[name] = Stage(median(auto), min(auto), max(auto), fixed, len(of))
    return columns


def as_dict(part: Measured | Stage) -> dict[str, Any]:
    """The fields, ready for JSON."""
    return asdict(part) | ({"share": part.share} if isinstance(part, Stage) else {})
