"""Both sides run once a turn, in turns."""

from __future__ import annotations

import pytest

from forerun.measure import turns
from forerun.measure.turns import Turns, in_turns


def test_runs_alternate_and_ratios_are_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ran = 0.0, []

    def run(name: str, seconds: list[float]) -> None:
        nonlocal now
        ran.append(name)
        now += seconds.pop(0)

    monkeypatch.setattr(turns, "perf_counter", lambda: now)
    plain, other = [6.0, 3.0, 2.0], [2.0, 3.0, 4.0]
    found = in_turns(
        lambda: run("plain", plain),
        lambda: run("other", other),
        3,
        lambda turn: ran.append(str(turn)),
    )
    assert found == Turns(plain=3.0, other=3.0, ratio=1.0, least=0.5, most=3.0)
    assert ran == ["0", "plain", "other", "1", "plain", "other", "2", "plain", "other"]
