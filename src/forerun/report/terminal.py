"""Tables as people read them: with lines and colours in a terminal, as aligned text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.report.table import Mark, Table

if TYPE_CHECKING:
    from rich.table import Table as Grid

STYLES = {
    Mark.NONE: "",
    Mark.BEST: "bold green",
    Mark.FREE: "green",
    Mark.SLOWER: "red",
    Mark.NO_ROOM: "yellow",
    Mark.APPROXIMATE: "yellow",
}
# Ways to lay out a table, the next one where it is still too wide: what stands for a space and for a slash
# in the header, and the padding.
_LAYOUTS = ((" ", "/", 1), ("\n", "/", 1), ("\n", "/\n", 0))


def as_text(table: Table) -> str:
    """The title, aligned columns and the notes."""
    lines = [list(table.header), *table.texts]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    columns = list(zip(widths, table.aligned, strict=True))
    aligned = [
        "  ".join(
            text.ljust(width) if side == "l" else text.rjust(width)
            for text, (width, side) in zip(line, columns, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, *aligned, *table.notes])


def show_tables(tables: Sequence[Table]) -> None:
    """Print tables to standard output, as it is a terminal or a pipe."""
    if not sys.stdout.isatty():
        print("\n\n".join(map(as_text, tables)))
        return
    for table in tables:
        _show_in_terminal(table)


def _show_in_terminal(table: Table) -> None:
    from rich.console import Console, ConsoleDimensions
    from rich.measure import Measurement

    console = Console(highlight=False)
    terminal = console.width
    unlimited = console.options.update(max_width=1 << 16)
    # No number is cut: headers break first, then columns move together.
    for layout in _LAYOUTS:
        grid = _grid(table, *layout)
        width = Measurement.get(console, unlimited, grid).maximum
        if width <= terminal:
            break
    else:
        # Names break too; where there are none, the terminal wraps.
        if "l" in table.align:
            grid = _grid(table, *_LAYOUTS[1], no_wrap=False)
        else:
            console.size = ConsoleDimensions(width, console.height)
    console.print(table.title, style="italic", markup=False, soft_wrap=True)
    console.print(grid)
    for note in table.notes:
        console.print(note, markup=False)


def _grid(table: Table, space: str, slash: str, padding: int, no_wrap: bool = True) -> Grid:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(
        box=box.SIMPLE_HEAD, collapse_padding=True, padding=(0, padding), show_edge=bool(padding)
    )
    for name, side in zip(table.header, table.aligned, strict=True):
        broken = name.replace(" ", space).replace("/", slash)
        grid.add_column(broken, justify="left" if side == "l" else "right", no_wrap=no_wrap)
    texts = iter(table.texts)
    for group in table.groups:
        for row, line in zip(group, texts, strict=False):
            styles = (cell.style or STYLES[cell.mark] for cell in row)
            grid.add_row(*map(Text, line, styles))
        grid.add_section()
    return grid
