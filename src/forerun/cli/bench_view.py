"""A report of `forerun bench` for people: the verdict in words above its tables."""

from __future__ import annotations

from forerun.bench.report import Report
from forerun.bench.tables import tables
from forerun.report.result import Result, Sentence
from forerun.report.terminal import show as show_result


def show(report: Report) -> None:
    """Write it to standard output, and what was left out to standard error."""
    answers = [Sentence(f"{text}.", details, "bold") for text, details in report.paragraphs]
    endings = [report.closeness] if report.closeness else []
    show_result(
        Result(answers=answers, tables=tables(report), endings=endings, notes=report.remarks)
    )
