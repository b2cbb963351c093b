"""Results as people read them: with lines and colours in a terminal, as aligned text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from forerun.report.result import Result, Sentence, as_sentence
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
    """The title, aligned columns and the notes; without a line for a title or header that is empty."""
    lines = [*([list(table.header)] if any(table.header) else []), *table.texts]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    columns = list(zip(widths, table.aligned, strict=True))
    aligned = [
        "  ".join(
            text.ljust(width) if side == "l" else text.rjust(width)
            for text, (width, side) in zip(line, columns, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*filter(None, [table.title]), *aligned, *table.notes])


def show(result: Result) -> None:
    """Write answers, tables and endings to standard output; what marks mean, and notes, to standard error."""
    terminal = sys.stdout.isatty()
    if hasattr(sys.stdout, "reconfigure"):
        # Text in a pipe is UTF-8 whatever the locale.
        sys.stdout.reconfigure(**({"errors": "replace"} if terminal else {"encoding": "utf-8"}))
    if terminal:
        _show_in_terminal(result)
    else:
        said = ["\n".join(map(_text, part)) for part in (result.answers, result.endings)]
        parts = [said[0], *map(as_text, result.tables), said[1]]
        if text := "\n\n".join(filter(None, parts)):
            print(text, flush=True)
    # Python's print takes no stream, as a closed one is, for standard output.
    if result.legend and sys.stderr is not None:
        print(", ".join(result.legend), file=sys.stderr)
    for note in result.notes:
        print(f"forerun: {note}", file=sys.stderr)


def _text(sentence: str | Sentence) -> str:
    text, details, _ = as_sentence(sentence)
    return "\n".join([text, *(f"  {line}" for line in details)])


def _show_in_terminal(result: Result) -> None:
    _say(result.answers)
    if result.answers and result.tables:
        print()
    for table in result.tables:
        _show_table(table)
    _say(result.endings)


def _say(sentences: Sequence[str | Sentence]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for text, details, style in map(as_sentence, sentences):
        console.print(Text(text, style))
        for line in details:
            console.print(Padding(Text(line), (0, 0, 0, 2)))


def _show_table(table: Table) -> None:
    from rich.console import Console, ConsoleDimensions
    from rich.measure import Measurement
    from rich.text import Text

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
        # Where there are names, all cells break; else the terminal wraps lines.
        if "l" in table.align:
            grid = _grid(table, " ", "/", 0, no_wrap=False)
        else:
            console.size = ConsoleDimensions(width, console.height)
    if table.title:
        console.print(table.title, style="italic", markup=False, soft_wrap=True)
    console.print(grid)
    if not grid.show_edge:
        console.print()
    for note in table.notes:
        console.print(Text(note))


def _grid(table: Table, space: str, slash: str, padding: int, no_wrap: bool = True) -> Grid:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        padding=(0, padding),
        show_edge=bool(padding),
        show_header=any(table.header),
    )
    for name, side in zip(table.header, table.aligned, strict=True):
        broken = name.replace(" ", space).replace("/", slash)
        justify: Literal["left", "right"] = "left" if side == "l" else "right"
        grid.add_column(broken, justify=justify, no_wrap=no_wrap, overflow="fold")
    texts = iter(table.texts)
    for group in table.groups:
        for row, line in zip(group, texts, strict=False):
            styles = (cell.style or STYLES[cell.mark] for cell in row)
            grid.add_row(*map(Text, line, styles))
        grid.add_section()
    return grid
