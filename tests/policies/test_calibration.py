"""Calibration: costs of every size, however unevenly time passes."""

from __future__ import annotations

import random

import pytest

from forerun.policies import calibration
from forerun.policies.calibration import TOKENS, calibrate
from tests.matrix import TARGET


@pytest.mark.parametrize("seed", range(30))
def test_pauses_do_not_break_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may be stopped at any moment, between the first pass and the second too."""
    source, now = random.Random(seed), 0.0

    def clock() -> float:
        nonlocal now
        now += source.choice((0.001, 0.01, 0.1, 1.0)) * source.random()
        return now

    monkeypatch.setattr(calibration, "perf_counter", clock)
    table = calibrate(TARGET, 2, 1.0).table
    assert all(table.seconds(n) > 0 for n in TOKENS)
