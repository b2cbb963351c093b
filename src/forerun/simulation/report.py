"""The result of a mode: rows for `--json`, tables for people, charts for `--plot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Mark(StrEnum):
    """A sign behind a number; `MEANINGS` says what it means."""

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
    """A number as text, its mark, and the text after it."""

    text: str
    mark: Mark = Mark.NONE
    tail: str = ""


@dataclass(frozen=True)
class Table:
    """Cells under a header; a terminal shows the groups of rows apart."""

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
    """A line per row, in groups of rows that agree in the fields `by`.

    Args:
        columns: by header, the cell of a row.
    """
    groups: dict[tuple[Any, ...], list[list[Cell]]] = {}
    for row in rows:
        cells = [column(row) for column in columns.values()]
        line = [Cell(cell) if isinstance(cell, str) else cell for cell in cells]
        groups.setdefault(tuple(row[name] for name in by), []).append(line)
    return Table(title, list(columns), list(groups.values()))


class Line(NamedTuple):
    """A curve, with the lower and upper edge of a band around it if there is one."""

    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Curves:
    """Lines by name, in panels by title; all panels share both axes and the names of their lines.

    Args:
        reference: name of a line at 1, if there is one.
    """

    title: str
    x_label: str
    panels: Mapping[str, Mapping[str, Line]]
    logarithmic: bool = False
    y_label: str = "speed-up over plain decoding"
    reference: str | None = "break-even"


@dataclass(frozen=True)
class HeatMap:
    """Speed-ups [y, x], with a line where they are 1."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]


class Dots(NamedTuple):
    """Forwards on the plane of a roofline.

    Args:
        x: FLOP a byte.
        y: FLOP a second.
        labels: beside the points; empty ones are left out.
    """

    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str]


@dataclass(frozen=True)
class Roof:
    """Arithmetic intensity against performance, both logarithmic, under the limits of a machine.

    Args:
        slopes: bytes a second, by name.
        ceilings: FLOP a second, by name.
        ridge: where memory traffic and arithmetic take equally long, FLOP a byte and FLOP a second.
        dots: by name.
    """

    title: str
    slopes: Mapping[str, float]
    ceilings: Mapping[str, float]
    ridge: tuple[float, float]
    dots: Mapping[str, Dots]


Chart = Curves | HeatMap | Roof


@dataclass(frozen=True)
class Result:
    """The result of a command.

    Args:
        settings: all options, defaults included.
        rows: one flat object per setting.
        tables, charts: the same for people.
        facts: what applies to all rows.
        notes: sentences for people, beside the result.
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
    """The settings of a mode, a dataclass of the options' names, for `--json`."""
    fields = asdict(request).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields}


def speedup_cell(value: float, best: bool = False, tail: str = "") -> Cell:
    """A speed-up, marked if it is the best of its kind or no gain at all."""
    mark = Mark.SLOWER if value <= 1.0 else Mark.BEST if best else Mark.NONE
    return Cell(f"{value:.2f}", mark, tail)


def interval_text(interval: Sequence[float], digits: int = 2) -> str:
    """`1.94–2.01`."""
    low, high = interval
    return f"{low:.{digits}f}–{high:.{digits}f}"
