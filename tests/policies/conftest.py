"""Policies on a machine that does nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.policies import calibration, memory
from forerun.policies.calibration import Calibrated, calibrate

# As many as users get, before `tests/conftest.py` makes them fewer: here the timing itself is tested.
PASSES = calibration.PASSES


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else the machine does while it is timed is not noticed."""

    def quiet(target: Any, rows: int) -> Calibrated:
        return Calibrated(calibrate(target, rows).table)

    monkeypatch.setattr(memory, "calibrate", quiet)
    monkeypatch.setattr(calibration, "PASSES", PASSES)
