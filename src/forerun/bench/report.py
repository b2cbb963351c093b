"""Report of a session: figures, verdict, and how it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forerun.bench.pairs import (
    ALL,
    MeasuredPair,
    SettingFigures,
    first,
    gaps,
    rate,
    stages,
    summarize,
)
from forerun.bench.settings import COLD
from forerun.bench.verdict import Recommendation, defects, shown, times, verdicts
from forerun.errors import counted
from forerun.report.chart import Span, Spans
from forerun.report.result import DEFECT_FOUND, Figure, Result, Sentence
from forerun.report.table import Cell, Table

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


@dataclass(frozen=True)
class BenchReport:
    """Rows of a session, and the facts and notes beside them.

    Args:
        model: the target, as the user named it.
        command: that makes the report again.
        facts: of machine, model, workload and sampler, in words, by what they are of.
        rows: of all contestants.
        exactness: of each setting; of peers nothing is known.
        peers: names of contestants that are not forerun's, with versions and settings.
        notes: what was left out, and why.
    """

    model: str
    command: str
    facts: Mapping[str, str]
    rows: list[MeasuredPair]
    exactness: Mapping[str, str] = field(default_factory=dict)
    peers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @cached_property
    def cells(self) -> list[SettingFigures]:
        """Figures of each setting, over all categories and by category."""
        return summarize(self.rows)

    @cached_property
    def whole(self) -> list[SettingFigures]:
        """Figures over all categories."""
        return [cell for cell in self.cells if cell.category == ALL]

    @cached_property
    def verdicts(self) -> list[Recommendation]:
        """Verdict on each temperature and batch size."""
        return verdicts(self.cells, tuple(self.peers))

    @cached_property
    def defects(self) -> list[str]:
        """Sentences on outputs that are wrong."""
        return defects(self.cells)

    @cached_property
    def paragraphs(self) -> list[Sentence]:
        """The verdict and all that bears on it, most important first, without full stops."""
        several = len(self.verdicts) > 1
        advice = [
            (f"{verdict.where}: {verdict.advice}" if several else verdict.advice, verdict.details)
            for verdict in self.verdicts
        ]
        return [
            *(Sentence(text, style="bold red") for text in self.defects),
            *(Sentence(text, details, "bold") for text, details in advice),
            *(Sentence(text, style="bold") for text in self.beside_peers),
        ]

    @cached_property
    def remarks(self) -> list[str]:
        """Failures, approximations and whatever else was left out."""
        remarks = []
        for cell in self.whole:
            if cell.failed:
                where = f"{cell.setting} at temperature {cell.temperature:g}"
                count = counted(len(cell.failed), "measurement")
                remarks.append(f"{count} failed: {where} ({_first_error(cell.failed)})")
        measured = {cell.setting for cell in self.whole}
        lost: dict[str, list[MeasuredPair]] = {}
        for row in self.rows:
            if row.error is not None and row.key.setting not in measured:
                lost.setdefault(row.key.setting, []).append(row)
        for setting, rows in lost.items():
            remarks.append(f"{setting} was never measured ({_first_error(rows)})")
        for setting, level in self.exactness.items():
            if level == "approximate":
                remarks.append(f"{setting} is approximate: its output is not the target's")
        return [*remarks, *self.notes]

    @property
    def beside_peers(self) -> list[str]:
        """Sentences with ratios of forerun's speed to each peer's, plain and each at its best."""
        best: dict[str, list[float]] = {}
        ours = [
            cell
            for cell in self.whole
            if cell.setting not in (*self.peers, COLD) and (cell.temperature, cell.batch) == (0, 1)
        ]
        for cell in self.whole:
            if cell.setting in self.peers:
                name = str(self.peers[cell.setting]["name"])
                best.setdefault(name, []).append(cell.speedup.value)
        top = max([1.0, *(cell.speedup.value for cell in ours)])
        return [
            f"beside {name} at its best, forerun decodes {times(1 / max(values))} as fast plainly, and "
            f"{times(top / max(values))} at its own best"
            for name, values in best.items()
        ]

    @property
    def engines(self) -> dict[str, str]:
        """Versions and settings of peers, by their names."""
        return {
            str(facts["name"]): ", ".join(
                f"{key} {value}" for key, value in facts.items() if key != "name"
            )
            for facts in self.peers.values()
        }

    def as_dict(self) -> dict[str, Any]:
        """The report, ready for JSON."""
        return {
            "model": self.model,
            "command": self.command,
            "facts": dict(self.facts),
            "verdicts": [
                {**vars(verdict), "details": list(verdict.details)} for verdict in self.verdicts
            ],
            "sentences": ["; ".join([said.text, *said.details]) for said in self.paragraphs],
            "remarks": self.remarks,
            "exactness": dict(self.exactness),
            "peers": {name: dict(facts) for name, facts in self.peers.items()},
            "cells": [cell.as_dict() for cell in self.cells],
        }


def _first_error(rows: Sequence[MeasuredPair]) -> str:
    return next(row.error for row in rows if row.error is not None)


def tables(report: BenchReport) -> list[Table]:
    """For each temperature and batch size the settings, and their speed-up by category."""
    made = []
    for temperature, batch in _places(report.whole):
        cells = [c for c in report.cells if (c.temperature, c.batch) == (temperature, batch)]
        whole = sorted((c for c in cells if c.category == ALL), key=lambda c: -c.speedup.value)
        where = f"T = {temperature:g}" + ("" if batch == 1 else f", batch {batch}")
        pairs = max(len(cell.rows) for cell in whole)
        made.append(Table.of(f"{where}, {counted(pairs, 'pair')}", _HEADER, map(_line, whole)))
        categories = list(dict.fromkeys(c.category for c in cells if c.category != ALL))
        if categories:
            parts = {(c.setting, c.category): c for c in cells}
            lines: list[list[Cell | str]] = [
                [cell.setting, *(_ratio(parts.get((cell.setting, name))) for name in categories)]
                for cell in whole
            ]
            title = f"{where}, speed-up by category"
            made.append(Table.of(title, ["setting", *categories], lines))
        made.append(_stages(where, [cell for cell in whole if cell.by_row]))
    return made


def result_of(report: BenchReport) -> Result:
    """The result of the command: verdict, tables, charts, and how it was measured."""
    return Result(
        content=report.as_dict(),
        answers=[said._replace(text=f"{said.text}.") for said in report.paragraphs],
        tables=tables(report),
        notes=report.remarks,
        exit_code=DEFECT_FOUND if report.defects else 0,
        title="forerun bench",
        subject=report.model,
        figures=[_figure(report.whole, verdict) for verdict in report.verdicts],
        described={**report.facts, **report.engines},
        command=report.command,
    )


def _stages(where: str, cells: Sequence[SettingFigures]) -> Table:
    """Milliseconds for each emitted token by stage."""
    plain = stages([side for cell in cells for side in cell.plain])
    rows = {"plain decoding": plain, **{cell.setting: stages(cell.sides) for cell in cells}}
    lines = [[name, *(f"{ms:.2f}" for ms in times.values())] for name, times in rows.items()]
    return Table.of(f"{where}, ms a token by stage", ["setting", *plain], lines)


def _figure(cells: Sequence[SettingFigures], verdict: Recommendation) -> Figure:
    """Speed-ups of one temperature and batch size."""
    here = (verdict.temperature, verdict.batch)
    whole = [cell for cell in cells if (cell.temperature, cell.batch) == here]
    whole.sort(key=lambda cell: -cell.speedup.value)
    text = (
        "Median over prompts of the speed-up, with its 95 % interval. Right of the line is "
        "faster. Every run follows a run of plain decoding of the same prompt, which it is compared with; "
        "caches are emptied between runs."
    )
    spans = Spans("speed-up by setting", "times plain decoding", list(map(_span, whole)))
    return Figure(f"Speed-up over plain decoding, {verdict.where}", text, spans)


def _span(cell: SettingFigures) -> Span:
    kind = "win" if cell.speedup.low > 1 else "lose" if cell.speedup.high < 1 else "even"
    interval = cell.speedup
    return Span(cell.setting, interval.low, interval.value, interval.high, shown(interval), kind)


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


def _ratio(cell: SettingFigures | None) -> Cell:
    """The speed-up, in bold where the whole interval is above 1."""
    if cell is None:
        return Cell("–")
    style = "bold" if len(cell.rows) > 1 and cell.speedup.low > 1 else ""
    return Cell(f"{cell.speedup.value:.2f}", style=style, heat=cell.speedup.value)
