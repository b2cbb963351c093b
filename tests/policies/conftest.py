"""Policies on a machine that does nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.policies import memory
from forerun.policies.calibration import Calibrated, calibrate


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else the machine does while it is timed is not noticed."""

    def quiet(target: Any, rows: int) -> Calibrated:
        return Calibrated(calibrate(target, rows).table)

    monkeypatch.setattr(memory, "calibrate", quiet)


@pytest.fixture
def short_calibration() -> None:
    """All passes: here the timing itself is tested."""
