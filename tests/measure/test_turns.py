"""Both sides run once a turn, in turns."""

from __future__ import annotations

import pytest

from forerun.measure import turns
from forerun.measure.turns import Turns, at_length, in_turns


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


@pytest.mark.parametrize("tokens", [1, 2, 64, 300])
def test_a_short_output_is_no_slow_one(tokens: int) -> None:
    """Drawn outputs end where they like: two runs of equal speed compare as equal whatever their lengths."""
    prompt, token = 3.0, 0.25
    seconds = prompt + token * tokens
    assert at_length(seconds, prompt, tokens, 100) == pytest.approx(prompt + token * 100)
