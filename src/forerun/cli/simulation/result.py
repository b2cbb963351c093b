"""What a mode hands back: rows for `--json`, tables for people, charts for `--plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Mark(StrEnum):
    """What is said of a number beside it."""

    NONE = ""
    BEST = "*"
    SLOWER = "-"
    NO_ROOM = "!"


MEANINGS = {
    Mark.BEST: "best length",
    Mark.SLOWER: "no faster than plain decoding",
    Mark.NO_ROOM: "does not fit into the memory",
}


class Cell(NamedTuple):
    """A number as text, its mark, and what follows it."""

    text: str
    mark: Mark = Mark.NONE
    tail: str = ""


@dataclass(frozen=True)
class Table:
    """Cells under a header; groups of rows stand apart in a terminal."""

    title: str
    header: Sequence[str]
    groups: Sequence[Sequence[Sequence[Cell]]]


@dataclass(frozen=True)
class Curves:
    """Lines over one axis, by their names; a band where a line has one."""

    title: str
    x_label: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    logarithmic: bool = False


@dataclass(frozen=True)
class HeatMap:
    """Speed-ups [y, x], with a line where they are one."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Result:
    """What has come of the command.

    Args:
        settings: what it was asked for, defaults included.
        rows: one flat object a setting.
        tables, charts: the same for people.
        facts: what belongs to all rows.
    """

    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    tables: Sequence[Table]
    charts: Sequence[Curves | HeatMap]
    facts: Mapping[str, Any] = field(default_factory=dict)


def speedup_cell(value: float, best: bool = False, tail: str = "") -> Cell:
    """A speed-up; where even the best is none, that is what counts."""
    mark = Mark.SLOWER if value <= 1.0 else Mark.BEST if best else Mark.NONE
    return Cell(f"{value:.2f}", mark, tail)


def interval_text(interval: Sequence[float], digits: int = 2) -> str:
    """`1.94 to 2.01`."""
    low, high = interval
    return f"{low:.{digits}f} to {high:.{digits}f}"
