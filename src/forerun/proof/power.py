"""Detection limits of the statistical tests: the smallest total variation by family of alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize

from forerun.proof.score_tests import SampledRows, ScoreTests
from forerun.theory.goodness_of_fit import (
    MOST_RATIO,
    drawn_to,
    favoured,
    logs_of,
    mean_smooth_scores,
    mean_total_variation,
    power,
    ratios_of,
    sharpened,
)
from forerun.theory.inputs import Floats

POWER = 0.9
# Limits above this are not stated: such deviations are not proportional to a family's strength.
_LARGEST = 0.25

FAMILIES = {
    "temperature": "rows to a power, as when drawn at another temperature",
    "towards the draft": "rows mixed with the draft's, as when drafted tokens are accepted too easily",
    "token group": "the odds of a group of tokens raised, as by a wrong mask or bias; the worst group",
}


@dataclass(frozen=True)
class Limit:
    """The smallest deviation of a family that would have been detected.

    Args:
        family: name of the family.
        meaning: defects that the family models.
        test: name of the test that would have detected it.
        total_variation: total variation averaged over the tokens of the test.
        power: probability of detection, over both looks.
    """

    family: str
    meaning: str
    test: str
    total_variation: float
    power: float = POWER


def limits(
    tests: ScoreTests, rows: SampledRows, starts: SampledRows, level: float, second_look: int
) -> Iterator[Limit]:
    """The detection limit of each family of alternatives.

    The best test of a family counts alone, at Holm's first and strictest step: the power is a lower bound.

    Args:
        tests: score tests of the run.
        rows: a sample of the target's rows.
        starts: a sample of the rows of target and draft at the start of rounds.
        level: probability of a false alarm in each look.
        second_look: number of outcomes in the second look / in the first.
    """
    rates: dict[str, Iterable[tuple[str, float]]] = {}
    if rows.rows:
        (p,) = rows.stacked()
        rates["temperature"] = [_by_log_probability(tests, p)]
        rates["token group"] = [_by_group(tests, p)]
    if starts.rows:
        rates["towards the draft"] = _by_draft(tests, *starts.stacked())
    for family, meaning in FAMILIES.items():
        found = []
        for name, rate in rates.get(family, ()):
            # The rate is zero if the rows cannot deviate in this way or are too few.
            if rate > 0:
                test = tests.by_name[name]
                needed = _needed(test.rank, level / len(tests.by_name), second_look)
                found.append((float((needed / (test.count * rate)) ** 0.5), name))
        distance, name = min(found, default=(1.0, ""))
        if distance <= _LARGEST:
            yield Limit(family, meaning, name, distance)


def _by_log_probability(tests: ScoreTests, rows: Floats) -> tuple[str, float]:
    """Name of the test that detects another temperature, and its noncentrality.

    The noncentrality is per outcome and squared total variation.
    """
    name = "emitted, by log probability"
    others = sharpened(rows)
    mean = ((others - rows) * logs_of(rows)).sum(1).mean(keepdims=True)
    return name, _rate(tests.by_name[name].noncentrality(mean), mean_total_variation(rows, others))


def _by_draft(tests: ScoreTests, rows: Floats, draft_rows: Floats) -> Iterator[tuple[str, float]]:
    """Names and rates of two tests: of ratios, and of ranks where ratios are rarely far from 1."""
    others, ratios = drawn_to(rows, draft_rows), ratios_of(rows, draft_rows)
    distance = mean_total_variation(rows, others)
    name = "round start, towards the draft"
    bounded = np.minimum(ratios, MOST_RATIO)
    mean = ((others - rows) * bounded).sum(1).mean(keepdims=True)
    yield name, _rate(tests.by_name[name].noncentrality(mean), distance)
    name = "round start, by draft"
    mean = mean_smooth_scores(rows, others, np.where(rows > 0, -ratios, np.inf))
    yield name, _rate(tests.by_name[name].noncentrality(mean), distance)


def _by_group(tests: ScoreTests, rows: Floats) -> tuple[str, float]:
    name = "emitted, by group"
    rates = []
    member = np.eye(int(tests.groups.max()) + 1)[tests.groups]
    for group in range(member.shape[1]):
        others = favoured(rows, tests.groups, group)
        mean = ((others - rows) @ member).mean(0)
        distance = mean_total_variation(rows, others)
        if distance > 0:
            rates.append(_rate(tests.by_name[name].noncentrality(mean), distance))
    return name, min(rates, default=0.0)


def _rate(noncentrality: float, distance: float) -> float:
    return noncentrality / distance**2 if distance > 0 else 0.0


@lru_cache
def _needed(degrees: int, level: float, second_look: int) -> float:
    """Noncentrality of the first look at which both looks reject with probability POWER."""

    def excess(value: float) -> float:
        first, second = (power(at, degrees, level) for at in (value, second_look * value))
        return first * second - POWER

    return float(optimize.brentq(excess, 0.0, 4000.0))
