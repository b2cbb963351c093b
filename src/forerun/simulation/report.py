"""Results of a mode: rows for `--json`, tables for people, charts for `--plot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Mark(StrEnum):
    """A mark behind a number; see `MEANINGS`."""

    NONE = ""
    BEST = "*"
    FREE = "="
    SLOWER = "-"
    NO_ROOM = "!"
    APPROXIMATE = "~"


MEANINGS = {
    Mark.BEST: "best length",
    Mark.FREE: "as good as free to check",
    Mark.SLOWER: "no faster than plain decoding",
    Mark.NO_ROOM: "does not fit into the memory",
    Mark.APPROXIMATE: "approximate: changes the output",
}


class Cell(NamedTuple):
    """A cell of a table: text, a mark, and text after the mark."""

    text: str
    mark: Mark = Mark.NONE
    tail: str = ""


@dataclass(frozen=True)
class Table:
    """A table of cells; its groups of rows are shown apart in a terminal."""

    title: str
    header: Sequence[str]
    groups: Sequence[Sequence[Sequence[Cell]]]


Row = Mapping[str, Any]


def long_table(
    title: str,
    columns: Mapping[str, Callable[[Row], Cell | str]],
    rows: Sequence[Row],
    by: Sequence[str] = (),
) -> Table:
    """A table with a line per row, in groups of rows that agree in the fields `by`.

    Args:
        columns: for each header, a function from a row to its cell.
    """
    groups: dict[tuple[Any, ...], list[list[Cell]]] = {}
    for row in rows:
        cells = [column(row) for column in columns.values()]
        line = [Cell(cell) if isinstance(cell, str) else cell for cell in cells]
        groups.setdefault(tuple(row[name] for name in by), []).append(line)
    return Table(title, list(columns), list(groups.values()))


class Line(NamedTuple):
    """A curve, optionally with the lower and upper edge of a band around it."""

    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Curves:
    """A chart of lines by name, in panels by title, which share axes and line names.

    Args:
        reference: name of a horizontal line at 1; None for no line.
    """

    title: str
    x_label: str
    panels: Mapping[str, Mapping[str, Line]]
    logarithmic: bool = False
    y_label: str = "speed-up over plain decoding"
    reference: str | None = "break-even"


@dataclass(frozen=True)
class HeatMap:
    """A map of speed-ups, [y, x], with a contour line at 1."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]


class Dots(NamedTuple):
    """Forwards as points of a roofline plot.

    Args:
        x: FLOP per byte.
        y: FLOP per second.
        labels: labels beside the points; empty ones are not drawn.
    """

    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str]


@dataclass(frozen=True)
class Roof:
    """A roofline plot: performance against arithmetic intensity, under the limits of a machine.

    Args:
        slopes: memory bandwidths in bytes per second, by name.
        ceilings: peaks in FLOP per second, by name.
        ridge: point at which memory traffic and arithmetic take equally long: FLOP per byte and FLOP per
            second.
        dots: points by name.
    """

    title: str
    slopes: Mapping[str, float]
    ceilings: Mapping[str, float]
    ridge: tuple[float, float]
    dots: Mapping[str, Dots]


Chart = Curves | HeatMap | Roof


@dataclass(frozen=True)
class Result:
    """Result of a command.

    Args:
        settings: all options, defaults included.
        rows: one flat object per setting.
        tables, charts: the rows in readable form.
        facts: values that apply to all rows.
        notes: sentences for people, besides the result.
        answers: sentences for people that are the result.
    """

    settings: Mapping[str, Any]
    rows: Sequence[Row]
    tables: Sequence[Table]
    charts: Sequence[Chart]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    answers: Sequence[str] = ()


def settings_of(request: Any) -> dict[str, Any]:
    """Settings of a mode for `--json`, from a dataclass with the options' names."""
    fields = asdict(request).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields}


def speedup_cell(value: float, best: bool = False, tail: str = "") -> Cell:
    """A cell with a speed-up, marked if it is the best or no gain."""
    mark = Mark.SLOWER if value <= 1.0 else Mark.BEST if best else Mark.NONE
    return Cell(f"{value:.2f}", mark, tail)


def interval_text(interval: Sequence[float], digits: int = 2) -> str:
    """An interval as text, such as `1.94–2.01`."""
    low, high = interval
    return f"{low:.{digits}f}–{high:.{digits}f}"
