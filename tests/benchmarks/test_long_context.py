"""The benchmark of drafting from a part of the cache, on the zoo's model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import long_context

pytestmark = pytest.mark.zoo
SMALL = (
    "--model",
    "zoo",
    "--windows",
    "16",
    "--lengths",
    "2",
    "--max-tokens",
    "12",
    "--pairs",
    "1",
)


def test_rows_of_settings_and_contexts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What has been read is kept, and read again where it is asked for."""
    report, sessions = tmp_path / "rows.json", tmp_path / "sessions"
    sessions.mkdir()
    document = tmp_path / "document.txt"
    document.write_text("def add(a, b):\n    return a + b\n\n\n" * 40)
    options = (
        *SMALL,
        "--document",
        str(document),
        "--contexts",
        "150",
        "300",
        "--json",
        str(report),
    )
    for _ in range(2):
        long_context.main([*options, "--sessions", str(sessions)])
        rows = json.loads(report.read_text())
        assert [row["context"] <= 160 for row in rows] == [True, False]
        for row in rows:
            assert row["identical"]
            assert row["speedup"] > 0
            assert row["drafted_rounds"] > 0
    assert len(list(sessions.iterdir())) == 2
    assert "same output" in capsys.readouterr().out


def test_a_document_that_is_too_short(tmp_path: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text("def add(a, b):")
    with pytest.raises(SystemExit, match="give one of"):
        long_context.main([*SMALL, "--document", str(document), "--contexts", "300"])
