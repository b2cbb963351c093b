"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from forerun.report.table import Table


def table_lines(table: Table) -> list[str]:
    """Lines of the table alone: header, rule and rows."""
    rule = ("---" if side == "l" else "---:" for side in table.aligned)
    return [_line(table.header), _line(rule), *map(_line, table.texts)]


def _line(texts: Iterable[str]) -> str:
    cells = (text.strip().replace("|", "\\|") for text in texts)
    return f"| {' | '.join(cells)} |"
