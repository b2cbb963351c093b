"""Results and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from forerun.report.result import Result, as_sentence
from forerun.report.table import Table


def document(result: Result) -> str:
    """A document: answers, tables, and how it was measured."""
    return "\n\n".join(_blocks(result)) + "\n"


def as_markdown(table: Table) -> str:
    """Header, rule and rows of a table."""
    return "\n".join([heading(table.header, table.align), *map(line, table.texts)])


def heading(header: Sequence[str], align: str = "l") -> str:
    """Header and rule of a table whose rows come later; `align` is as in `Table`."""
    rule = ("---" if side == "l" else "---:" for side in align.ljust(len(header), "r"))
    return f"{line(header)}\n{line(rule)}"


def line(cells: Iterable[str]) -> str:
    """A row of a table."""
    # A line break would end the row, and a backslash before a bar would free it.
    lines = (" ".join(cell.split()) for cell in cells)
    escaped = (text.replace("\\", "\\\\").replace("|", "\\|") for text in lines)
    return f"| {' | '.join(escaped)} |"


def _blocks(result: Result) -> Iterator[str]:
    yield f"# {result.title}" + (f": {result.subject}" if result.subject else "")
    for text, details, _ in map(as_sentence, result.answers):
        yield f"**{text[:1].upper()}{text[1:]}**"
        if details:
            yield "\n".join(f"- {line}" for line in details)
    for table in result.tables:
        if table.title:
            yield f"## {table.title}"
        yield as_markdown(table)
        yield from table.notes
    said = [*(as_sentence(ending).text for ending in result.endings), *result.notes]
    said += [*result.legend, *(f"{name}: {text}" for name, text in result.described.items())]
    if said:
        yield "## How it was measured"
        yield "\n".join(f"- {text}" for text in said)
    if result.command:
        yield f"`{result.command}`"
