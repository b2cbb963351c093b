"""Results of commands, as all writers take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from forerun.flags import settings_in
from forerun.report.chart import Chart, Spans
from forerun.report.machine import made_with
from forerun.report.table import MEANINGS, Mark, Row, Table

if TYPE_CHECKING:
    import torch

DEFECT_FOUND = 1
"""Exit code of a command that found a defect."""


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
    chart: Spans


@dataclass(frozen=True)
class Result:
    """Result of a command.

    Args:
        mode: which question it answers, for `--json`.
        settings: options in use, defaults included, and what else makes the result again.
        rows: one flat object per setting.
        tables, charts: the rows in readable form.
        facts: values that apply to all rows.
        notes: sentences for people, besides the result.
        answers: sentences for people that are the result.
        endings: sentences below the tables.
        content: the object of `--json` where it is another than mode, settings, answers, facts and rows.
        exit_code: exit code of the command.
        title, subject: heading of a document, and what it is about.
        figures: charts of a page.
        described: how it was measured, by what the words are about.
        command: the command line that makes the result again.
        device: device of the model; None if none was run.
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
    figures: Sequence[Figure] = ()
    described: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    device: torch.device | None = None

    @property
    def legend(self) -> list[str]:
        """Meanings of the marks in the tables."""
        marks = {cell.mark for table in self.tables for row in table.rows for cell in row}
        return [f"{mark} {MEANINGS[mark]}" for mark in Mark if mark and mark in marks]

    def as_dict(self) -> dict[str, Any]:
        """The object of `--json`."""
        begun = made_with(self.device)
        if self.content is not None:
            settings = {"settings": dict(self.settings)} if self.settings else {}
            return {**begun, **settings, **self.content}
        return {
            **begun,
            "mode": self.mode,
            "settings": dict(self.settings),
            **({"answers": list(self.answers)} if self.answers else {}),
            **self.facts,
            "rows": [dict(row) for row in self.rows],
        }


def as_sentence(text: str | Sentence) -> Sentence:
    """A sentence, which a text is without details and style."""
    return Sentence(text) if isinstance(text, str) else text


class Interrupted(KeyboardInterrupt):
    """An interruption of work that has a result so far.

    Args:
        result: result of what was done until then.
    """

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


def answer(run: Callable[[Any], Result], request: Any) -> Result:
    """The result of a request, with the request's options among its settings.

    Raises:
        Interrupted: with what there is, settings included.
    """
    settings = settings_in(request)
    try:
        result = run(request)
    except Interrupted as stopped:
        stopped.result = _with_settings(stopped.result, settings)
        raise
    return _with_settings(result, settings)


def _with_settings(result: Result, settings: Mapping[str, Any]) -> Result:
    return replace(result, settings={**settings, **result.settings})
