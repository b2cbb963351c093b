"""Tables of a page."""

from __future__ import annotations

from html import escape

from forerun.report.table import Cell, Table


def table_html(table: Table) -> str:
    """The table alone; cells with heat are coloured by it."""
    heat = (
        ' class="heat"' if any(cell.heat is not None for row in table.rows for cell in row) else ""
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    lines = "".join(
        f"<tr><th>{escape(first.text)}</th>{''.join(map(_cell, others))}</tr>"
        for first, *others in table.rows
    )
    return f"<table{heat}><tr>{head}</tr>{lines}</table>"


def _cell(cell: Cell) -> str:
    text = escape(f"{cell.text}{cell.mark} {cell.tail}".strip())
    text = f"<b>{text}</b>" if cell.style == "bold" else text
    if cell.heat is None:
        return f"<td>{text}</td>"
    kind = "win" if cell.heat >= 1 else "lose"
    strength = min(70, round(120 * abs(cell.heat - 1)))
    return f'<td class="{kind}" style="--strength:{strength}%">{text}</td>'
