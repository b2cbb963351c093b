"""Tables: cells with marks, in columns with an alignment, written by `terminal`, `markdown` and `html`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

Row = Mapping[str, Any]


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
    """A cell of a table.

    Args:
        text, mark, tail: text, a mark, and text after the mark.
        style: style of a cell without mark, as rich names it; `bold` is bold on a page too.
        heat: a ratio that colours the cell of a page, 1 being neutral.
    """

    text: str
    mark: Mark = Mark.NONE
    tail: str = ""
    style: str = ""
    heat: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of cells; its groups of rows are shown apart in a terminal.

    Args:
        align: a letter for each of the first columns, l for left and r for right; the others are right.
        notes: sentences below it.
    """

    title: str
    header: Sequence[str]
    groups: Sequence[Sequence[Sequence[Cell]]]
    align: str = ""
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        title: str,
        header: Sequence[str],
        rows: Iterable[Sequence[Cell | str]],
        align: str = "l",
        notes: Sequence[str] = (),
    ) -> Table:
        """A table of one group, from cells and texts."""
        return cls(title, header, [[_cells(row) for row in rows]], align, notes)

    @property
    def rows(self) -> list[Sequence[Cell]]:
        """Rows of all groups."""
        return [row for group in self.groups for row in group]

    @property
    def aligned(self) -> str:
        """A letter for each column."""
        return self.align.ljust(len(self.header), "r")

    @property
    def texts(self) -> list[list[str]]:
        """Texts of the rows, with room for marks in columns that have any."""
        rows = self.rows
        marked = [any(cell.mark for cell in column) for column in zip(*rows, strict=True)]
        return [[_written(*pair) for pair in zip(row, marked, strict=True)] for row in rows]


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
        line = _cells([column(row) for column in columns.values()])
        groups.setdefault(tuple(row[name] for name in by), []).append(line)
    return Table(title, list(columns), list(groups.values()))


def speedup_cell(value: float, best: bool = False, tail: str = "") -> Cell:
    """A cell with a speed-up, marked if it is the best or no gain."""
    mark = Mark.SLOWER if value <= 1.0 else Mark.BEST if best else Mark.NONE
    return Cell(f"{value:.2f}", mark, tail)


def _cells(row: Iterable[Cell | str]) -> list[Cell]:
    return [Cell(cell) if isinstance(cell, str) else cell for cell in row]


def _written(cell: Cell, with_marks: bool) -> str:
    # Numbers stay below each other whether or not they are marked.
    marked = f"{cell.text}{cell.mark or (' ' if with_marks else '')}"
    return f"{marked} {cell.tail}" if cell.tail else marked
