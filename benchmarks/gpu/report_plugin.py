"""A plugin of pytest that hands on what was collected and each test's outcome, a JSON line each."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

DESCRIPTOR = "FORERUN_REPORT_FD"
"""The variable that names the descriptor that lines are written to."""


def _send(content: dict[str, Any]) -> None:
    os.write(int(os.environ[DESCRIPTOR]), f"{json.dumps(content)}\n".encode())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Hand on the names of the tests that will run."""
    _send({"collected": [item.nodeid for item in session.items]})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Hand on an outcome: of the call, or of what went wrong around it."""
    if report.when != "call" and report.passed:
        return
    why = ""
    if not report.passed:
        skipped = isinstance(report.longrepr, tuple)
        lines = report.longrepr[2] if skipped else report.longreprtext  # type: ignore[index]
        said = [line for line in lines.splitlines() if line.startswith("E ")]
        why = " ".join(said or lines.splitlines()[-1:])[:400]
    seconds = round(report.duration, 3)
    _send({"test": report.nodeid, "outcome": report.outcome, "seconds": seconds, "why": why})
