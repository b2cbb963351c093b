"""The monitor stops what surely loses, keeps what surely gains, and asks for evidence first."""

from __future__ import annotations

import numpy as np
import pytest

from forerun import Monitor
from forerun.theory.formulas import speedup

PLAIN, LENGTH = 0.03, 5


def simulated(
    monitor: Monitor,
    acceptance: float,
    cost_ratio: float = 0.1,
    *,
    rounds: int = 100,
    timed: bool = True,
    seed: int = 0,
) -> list[bool]:
    """What is decided after each of many rounds of a loop whose times scatter by a quarter."""
    randomness = np.random.default_rng(seed)
    decided = []
    for _ in range(rounds):
        accepted = int(np.argmin([*(randomness.random(LENGTH) < acceptance), False]))
        seconds = PLAIN * (cost_ratio * LENGTH + 1.0) * randomness.gamma(16.0) / 16.0
        monitor.record_round(LENGTH, accepted, seconds=seconds if timed else None)
        decided.append(bool(monitor.should_disable()))
    return decided


def with_plain_rounds(seed: int = 1) -> Monitor:
    monitor, randomness = Monitor(), np.random.default_rng(seed)
    for _ in range(40):
        monitor.record_plain(PLAIN * randomness.gamma(16.0) / 16.0)
    return monitor


ALL = [(a, c) for a in (0.1, 0.3, 0.5, 0.7, 0.9) for c in (0.02, 0.1, 0.3, 0.6)]
CLEAR = [case for case in ALL if not 0.75 < speedup(case[0], LENGTH, case[1]) < 1.15]


@pytest.mark.parametrize(("acceptance", "cost_ratio"), CLEAR)
def test_measured_times_decide(acceptance: float, cost_ratio: float) -> None:
    """Against the formula: a clear win is never stopped, a clear loss always within the window."""
    gain = speedup(acceptance, LENGTH, cost_ratio)
    for seed in range(10):
        decided = simulated(with_plain_rounds(seed), acceptance, cost_ratio, seed=seed)
        if gain >= 1.15:
            assert not any(decided), (gain, seed)
        if gain <= 0.75:
            assert decided[-1], (gain, seed)


def test_at_break_even_chance_alone_rarely_decides() -> None:
    """Of rounds after each of which it is asked, one in a hundred at most."""
    cost = (float(speedup(0.5, LENGTH, 0.0)) - 1.0) / LENGTH
    assert speedup(0.5, LENGTH, cost) == pytest.approx(1.0)
    decided = [
        stop
        for seed in range(10)
        for stop in simulated(with_plain_rounds(seed), 0.5, cost, rounds=500, seed=seed)
    ]
    assert sum(decided) <= 0.01 * len(decided)


def test_without_times_nothing_is_decided() -> None:
    """However few tokens are accepted: what that costs is not known."""
    monitor = Monitor()
    assert not any(simulated(monitor, 0.05, timed=False))
    assert monitor.should_disable().reason.startswith("undecided: record the time")


def test_evidence_is_asked_for_first() -> None:
    """However bad the first rounds are, and however many plain ones there were."""
    monitor = Monitor()
    for _ in range(50):
        monitor.record_round(0, 0, seconds=PLAIN)
    for _ in range(29):
        monitor.record_round(5, 0, seconds=9.0)
        assert not monitor.should_disable()
    assert "29 of the newest rounds drafted" in monitor.should_disable().reason
    monitor.record_round(5, 0, seconds=9.0)
    decision = monitor.should_disable()
    assert decision
    assert decision.reason.startswith("slower: 0.00 x plain decoding")


def test_few_plain_tokens_are_no_measure() -> None:
    monitor = Monitor()
    monitor.record_plain(1e-6, tokens=7)
    assert not any(simulated(monitor, 0.7))
    monitor.record_plain(1e-6, tokens=7)
    assert monitor.should_disable()


def test_one_round_of_an_hour_stops_nothing() -> None:
    monitor = with_plain_rounds()
    simulated(monitor, 0.8, 0.05)
    monitor.record_round(5, 2, seconds=3600.0)
    assert not monitor.should_disable()


def test_a_monitor_sees_a_turn_of_the_text() -> None:
    """It decides by the window: what was gained before does not excuse what is lost now."""
    monitor = with_plain_rounds()
    assert not any(simulated(monitor, 0.9, rounds=500))
    assert simulated(monitor, 0.05, rounds=100)[-1]
    assert not simulated(monitor, 0.9, rounds=100)[-1]
