"""What is said of the rows."""

from __future__ import annotations

from typing import Any

from benchmarks.kv.measure import Row
from benchmarks.kv.report import report_of
from forerun.report.chart import Curves
from forerun.report.table import Mark


def row(setting: str, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "exactness": "distributional" if setting == "full" else "approximate",
        "context": 512,
        "perplexity": 10.0,
        "perplexity_ratio": 1.0,
        "perplexity_low": 1.0,
        "perplexity_high": 1.0,
        "found": 1.0,
        "found_by_depth": {"0.5": 1.0},
        "answer_probability": 0.9,
        "memory_bytes": 1000,
        "memory_share": 1.0,
        "read_seconds": 1.0,
        "tokens_per_second": 10.0,
        "speed_ratio": 1.0,
    }
    return {"setting": setting, **values, **changes}


def answers(*rows: Row) -> list[str]:
    return list(map(str, report_of(rows).answers))


def test_the_smallest_of_the_good_settings_is_named() -> None:
    small = row("small", memory_share=0.25, perplexity_ratio=1.3)
    blind = row("blind", memory_share=0.3, found=0.5)
    good = row("good", memory_share=0.5, perplexity_ratio=1.01, speed_ratio=1.2)
    large = row("large", memory_share=0.8)
    (said,) = answers(row("full"), small, blind, good, large)
    assert said.startswith("At 512 tokens good keeps perplexity within 2% (1.010 x)")
    assert "50% of the memory, at 1.20 x the speed" in said


def test_where_none_is_good_the_nearest_is_named() -> None:
    (said,) = answers(row("full"), row("a", perplexity_ratio=1.5), row("b", perplexity_ratio=1.1))
    assert "no setting keeps perplexity within 2%" in said
    assert "b comes nearest in perplexity (1.100 x) and finds 100%" in said


def test_the_full_cache_alone_needs_no_words() -> None:
    result = report_of([row("full")])
    assert not result.answers
    assert not result.charts


def test_contexts_are_tables_and_points_of_curves() -> None:
    rows = [row(name, context=size) for size in (512, 1024) for name in ("full", "h2o")]
    result = report_of(rows)
    names = [[line[0].text for group in table.groups for line in group] for table in result.tables]
    assert names == [["full", "h2o"], ["full", "h2o"]]
    marks = {line[0].text: line[0].mark for group in result.tables[0].groups for line in group}
    assert marks == {"full": Mark.NONE, "h2o": Mark.APPROXIMATE}
    (curves,) = result.charts
    assert isinstance(curves, Curves)
    assert curves.panels["perplexity"]["h2o"].x == [512, 1024]
