"""Tables of a report, and its result as all writers take it."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.bench.figures import figures
from forerun.bench.report import BenchReport
from forerun.bench.summary import ALL, SettingFigures, first, gaps, rate
from forerun.bench.verdict import shown
from forerun.report.result import Result, Sentence
from forerun.report.table import Cell as TableCell
from forerun.report.table import Table

DEFECT_FOUND = 1
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


def tables(report: BenchReport) -> list[Table]:
    """For each temperature and batch size the settings, and their speed-up by category."""
    made = []
    for temperature, batch in _places(report.whole):
        cells = [c for c in report.cells if (c.temperature, c.batch) == (temperature, batch)]
        whole = sorted((c for c in cells if c.category == ALL), key=lambda c: -c.speedup.value)
        where = f"T = {temperature:g}" + ("" if batch == 1 else f", batch {batch}")
        pairs = max(len(cell.rows) for cell in whole)
        made.append(Table.of(f"{where}, {pairs} pairs", _HEADER, map(_line, whole)))
        categories = list(dict.fromkeys(c.category for c in cells if c.category != ALL))
        if categories:
            parts = {(c.setting, c.category): c for c in cells}
            lines: list[list[TableCell | str]] = [
                [cell.setting, *(_ratio(parts.get((cell.setting, name))) for name in categories)]
                for cell in whole
            ]
            title = f"{where}, speed-up by category"
            made.append(Table.of(title, ["setting", *categories], lines))
    return made


def result_of(report: BenchReport) -> Result:
    """The result of the command: verdict, tables, charts, and how it was measured."""
    defects = [Sentence(f"{text}.", style="bold red") for text in report.defects]
    advice = [Sentence(f"{text}.", details, "bold") for text, details in report.paragraphs]
    return Result(
        content=report.as_dict(),
        answers=[*defects, *advice[len(defects) :]],
        tables=tables(report),
        endings=[report.closeness] if report.closeness else [],
        notes=report.remarks,
        exit_code=DEFECT_FOUND if defects else 0,
        title="forerun bench",
        subject=report.model,
        figures=figures(report),
        described={**report.facts, **report.engines},
        command=report.command,
    )


def _places(cells: Sequence[SettingFigures]) -> list[tuple[float, int]]:
    return list(dict.fromkeys((cell.temperature, cell.batch) for cell in cells))


def _line(cell: SettingFigures) -> list[str]:
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


def _ratio(cell: SettingFigures | None) -> TableCell:
    """The speed-up, in bold where the whole interval is above 1."""
    if cell is None:
        return TableCell("–")
    style = "bold" if len(cell.rows) > 1 and cell.speedup.low > 1 else ""
    return TableCell(f"{cell.speedup.value:.2f}", style=style, heat=cell.speedup.value)
