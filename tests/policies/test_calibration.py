"""Calibration: costs of every size, however unevenly time passes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import count

import pytest

from forerun.contracts import Cache, CausalLM
from forerun.policies import calibration
from forerun.policies.calibration import TOKENS, calibrate, convex, typical
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


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_and_forwards_differ_in_their_tokens(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal tokens would call the same experts of a mixture, so that checking would seem to cost nothing."""
    seen, run = list[Sequence[Sequence[int]]](), calibration._run

    def watched(target: CausalLM, cache: Cache, token_ids: Sequence[Sequence[int]]) -> float:
        seen.append(token_ids)
        return run(target, cache, token_ids)

    monkeypatch.setattr(calibration, "_run", watched)
    monkeypatch.setattr(calibration, "perf_counter", partial(next, count(0.0, 1e-4)))
    calibrate(TARGET, rows, 0.1)
    longest = [ids for ids in seen if len(ids) == rows and len(ids[0]) == max(TOKENS)]
    assert len(longest) > 1
    assert len({str(ids) for ids in longest}) == len(longest)
    assert all(len({tuple(row) for row in ids}) == rows for ids in longest)
    assert all(len(set(row)) > 1 for ids in longest for row in ids)


def true_seconds(tokens: int) -> float:
    return 1.0 + 0.02 * tokens + 0.005 * tokens**2


@pytest.mark.parametrize("seed", range(20))
def test_slow_stretches_do_not_change_the_shape(seed: int) -> None:
    """The machine is slower for some turns or from the middle of one, and interrupts single forwards."""
    chance, slow, turns = random.Random(seed), 1.0, list[dict[int, float]]()
    for _ in range(60):
        turns.append({})
        for n in chance.sample(TOKENS, len(TOKENS)):
            if chance.random() < 0.02:
                slow = chance.choice((1.0, 2.0))
            interrupted = 3.0 if chance.random() < 0.05 else 1.0
            turns[-1][n] = true_seconds(n) * slow * interrupted * chance.gauss(1.0, 0.05)
    found = typical(turns)
    for n in TOKENS:
        shape = true_seconds(n) / true_seconds(1)
        assert found[n] / found[1] == pytest.approx(shape, rel=0.12)


def test_a_disturbed_time_does_not_raise_the_convex_curve() -> None:
    times = {n: true_seconds(n) for n in TOKENS}
    assert convex(times) == pytest.approx(times)
    raised = convex(times | {4: 9.0})
    assert raised[4] == pytest.approx((times[3] + times[5]) / 2)
    assert {n: raised[n] for n in TOKENS if n != 4} == pytest.approx(
        {n: times[n] for n in TOKENS if n != 4}
    )
