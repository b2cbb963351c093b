"""Results and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forerun.report.result import Result, as_sentence
from forerun.report.table import Table


def document(result: Result) -> str:
    """A document: answers, tables, and how it was measured."""
    return "\n\n".join(_blocks(result)) + "\n"


def table_lines(table: Table) -> list[str]:
    """Lines of the table alone: header, rule and rows."""
    rule = ("---" if side == "l" else "---:" for side in table.aligned)
    return [_line(table.header), _line(rule), *map(_line, table.texts)]


def _blocks(result: Result) -> Iterator[str]:
    yield f"# {result.title}" + (f": {result.subject}" if result.subject else "")
    for text, details, _ in map(as_sentence, result.answers):
        yield f"**{text[:1].upper()}{text[1:]}**"
        if details:
            yield "\n".join(f"- {line}" for line in details)
    for table in result.tables:
        if table.title:
            yield f"## {table.title}"
        yield "\n".join(table_lines(table))
        yield from table.notes
    said = [*(as_sentence(ending).text for ending in result.endings), *result.notes]
    said += [f"{name}: {text}" for name, text in result.described.items()]
    if said:
        yield "## How it was measured"
        yield "\n".join(f"- {text}" for text in said)
    if result.command:
        yield f"`{result.command}`"


def _line(texts: Iterable[str]) -> str:
    # A line break would end the row, and a backslash before a bar would free it.
    lines = (" ".join(text.split()) for text in texts)
    cells = (line.replace("\\", "\\\\").replace("|", "\\|") for line in lines)
    return f"| {' | '.join(cells)} |"
