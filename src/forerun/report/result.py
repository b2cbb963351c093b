"""Results of commands, as all writers take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from forerun.report.chart import Chart, Picture
from forerun.report.table import MEANINGS, Mark, Row, Table


class Sentence(NamedTuple):
    """A sentence for people, with lines that explain it.

    Args:
        style: style in a terminal, as rich names it.
    """

    text: str
    details: Sequence[str] = ()
    style: str = ""


class Figure(NamedTuple):
    """A chart of a page, with its heading and what it shows."""

    title: str
    text: str
    chart: Picture


@dataclass(frozen=True)
class Result:
    """Result of a command.

    Args:
        mode: which question it answers, for `--json`.
        settings: all options, defaults included.
        rows: one flat object per setting.
        tables, charts: the rows in readable form.
        facts: values that apply to all rows.
        notes: sentences for people, besides the result.
        answers: sentences for people that are the result.
        endings: sentences below the tables.
        content: the object of `--json` where it is another than mode, settings, answers, facts and rows.
        exit_code: exit code of the command.
        title, subject: heading of a document, and what it is about.
        figures: charts of a page, by the heading above them.
        described: how it was measured, by what the words are about.
        command: the command line that makes the result again.
    """

    mode: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    answers: Sequence[str | Sentence] = ()
    endings: Sequence[str | Sentence] = ()
    content: Mapping[str, Any] | None = None
    exit_code: int = 0
    title: str = ""
    subject: str = ""
    figures: Mapping[str, Sequence[Figure]] = field(default_factory=dict)
    described: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def legend(self) -> list[str]:
        """Meanings of the marks in the tables."""
        marks = {cell.mark for table in self.tables for row in table.rows for cell in row}
        return [f"{mark} {MEANINGS[mark]}" for mark in Mark if mark and mark in marks]

    def as_dict(self) -> dict[str, Any]:
        """The object of `--json`, without versions and hardware."""
        if self.content is not None:
            return dict(self.content)
        return {
            "mode": self.mode,
            "settings": dict(self.settings),
            **({"answers": list(self.answers)} if self.answers else {}),
            **self.facts,
            "rows": [dict(row) for row in self.rows],
        }


def as_sentence(text: str | Sentence) -> Sentence:
    """A sentence, which a text is without details and style."""
    return Sentence(text) if isinstance(text, str) else text


def settings_of(request: Any) -> dict[str, Any]:
    """Settings of a mode for `--json`, from a dataclass with the options' names."""
    fields = asdict(request).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields}
