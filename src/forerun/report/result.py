"""Results of commands: rows for `--json`, tables for people, charts for `--plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.report.chart import Chart
from forerun.report.table import Row, Table


@dataclass(frozen=True)
class Result:
    """Result of a command.

    Args:
        settings: all options, defaults included.
        rows: one flat object per setting.
        tables, charts: the rows in readable form.
        facts: values that apply to all rows.
        notes: sentences for people, besides the result.
        answers: sentences for people that are the result.
    """

    settings: Mapping[str, Any]
    rows: Sequence[Row]
    tables: Sequence[Table]
    charts: Sequence[Chart]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    answers: Sequence[str] = ()


def settings_of(request: Any) -> dict[str, Any]:
    """Settings of a mode for `--json`, from a dataclass with the options' names."""
    fields = asdict(request).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields}
