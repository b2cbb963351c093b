"""A report as tables of text, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.bench.report import Report
from forerun.bench.summary import ALL, Cell, first, gaps, rate
from forerun.bench.verdict import shown
from forerun.report.markdown import table_lines
from forerun.report.table import Table

_HEADER = (
    "setting",
    "speed-up (95 %)",
    "tokens/s",
    "plain",
    "tokens a forward",
    "accepted by position",
    "first token, ms",
    "gaps p50 / p99, ms",
    "same text",
)


def tables(report: Report, *, by_category: bool = True) -> list[Table]:
    """For each temperature and batch size the settings, and their speed-up by category."""
    made = []
    for temperature, batch in _places(report.whole):
        cells = [c for c in report.cells if (c.temperature, c.batch) == (temperature, batch)]
        whole = sorted((c for c in cells if c.category == ALL), key=lambda c: -c.speedup.value)
        where = f"T = {temperature:g}" + ("" if batch == 1 else f", batch {batch}")
        pairs = max(len(cell.rows) for cell in whole)
        made.append(Table.of(f"{where}, {pairs} pairs", _HEADER, map(_line, whole)))
        categories = list(dict.fromkeys(c.category for c in cells if c.category != ALL))
        if categories and by_category:
            parts = {(c.setting, c.category): c for c in cells}
            lines = [
                [cell.setting, *(_ratio(parts.get((cell.setting, name))) for name in categories)]
                for cell in whole
            ]
            title = f"{where}, speed-up by category"
            made.append(Table.of(title, ["setting", *categories], lines))
    return made


def markdown(report: Report) -> str:
    """The whole report."""
    parts = [f"# forerun bench: {report.model}"]
    for text, details in report.paragraphs:
        parts.append(
            "\n".join([f"**{_capital(text)}.**", "", *(f"- {item}" for item in details)]).strip()
        )
    for table in tables(report):
        parts.append("\n".join([f"## {table.title}", "", *table_lines(table)]))
    notes = [f"- {text}" for text in (report.closeness, *report.remarks) if text]
    notes += [f"- {name}: {text}" for name, text in report.facts.items()]
    notes += [f"- {name}: {text}" for name, text in report.engines.items()]
    parts.append("\n".join(["## How it was measured", "", *notes, "", f"`{report.command}`"]))
    return "\n\n".join(parts) + "\n"


def _places(cells: Sequence[Cell]) -> list[tuple[float, int]]:
    return list(dict.fromkeys((cell.temperature, cell.batch) for cell in cells))


def _line(cell: Cell) -> list[str]:
    spaces, per_forward, same = gaps(cell.sides), cell.tokens_per_forward, cell.identical
    positions = " ".join(f"{share:.0%}" for share in cell.acceptance_by_position[:5])
    return [
        cell.setting,
        shown(cell.speedup),
        f"{rate(cell.sides):.0f}",
        f"{rate(cell.plain):.0f}",
        "–" if per_forward is None else f"{per_forward.value:.2f}",
        positions or "–",
        _number(first(cell.sides)),
        f"{spaces['p50']:.1f} / {spaces['p99']:.1f}" if spaces else "–",
        "–" if same is None else f"{same[0]} of {same[1]}",
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _ratio(cell: Cell | None) -> str:
    return "–" if cell is None else f"{cell.speedup.value:.2f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
