"""Detection limits of the statistical tests: the smallest total variation by family of alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize

from forerun.proof.score_tests import WEIGHTS, SampledRows, ScoreTests
from forerun.theory.goodness_of_fit import (
    MOST_RATIO,
    ScoreTest,
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
    tests: ScoreTests,
    rows: SampledRows,
    starts: SampledRows,
    levels: tuple[float, float],
    second_look: int,
) -> Iterator[Limit]:
    """The detection limit of each family of alternatives.

    The best test of a family counts alone, at Holm's first and strictest step: the power is a lower bound.

    Args:
        tests: score tests of the run.
        rows: a sample of the target's rows.
        starts: a sample of the rows of target and draft at the start of rounds.
        levels: probabilities of a false alarm in the first and in the second look.
        second_look: number of outcomes in the second look / in the first.
    """
    rates: dict[str, Iterable[tuple[str, float]]] = {}
    if rows.rows:
        rates["temperature"] = [_by_log_probability(tests, rows)]
        rates["token group"] = [_by_group(tests, rows)]
    if starts.rows:
        rates["towards the draft"] = _by_draft(tests, starts)
    weights = sum(WEIGHTS[name] for name in tests.by_name)
    for family, meaning in FAMILIES.items():
        found = []
        for name, rate in rates.get(family, ()):
            # The rate is zero if the rows cannot deviate in this way or are too few.
            if rate > 0:
                test = tests.by_name[name]
                first, second = (WEIGHTS[name] / weights * level for level in levels)
                needed = _needed(test.rank, first, second, second_look)
                found.append((float((needed / (test.count * rate)) ** 0.5), name))
        distance, name = min(found, default=(1.0, ""))
        if distance <= _LARGEST:
            yield Limit(family, meaning, name, distance)


def _by_log_probability(tests: ScoreTests, sample: SampledRows) -> tuple[str, float]:
    """Name of the test that detects another temperature, and its rate."""
    name, effects = "emitted, by log probability", []
    for (rows,) in sample:
        others = sharpened(rows)
        mean = ((others - rows) * logs_of(rows)).sum(1)
        effects.append((mean, mean_total_variation(rows, others)))
    return name, _rate(tests.by_name[name], effects)


def _by_draft(tests: ScoreTests, sample: SampledRows) -> Iterator[tuple[str, float]]:
    """Names and rates of two tests: of ratios, and of ranks where ratios are rarely far from 1."""
    by_ratio, by_rank = [], []
    for rows, draft_rows in sample:
        others, ratios = drawn_to(rows, draft_rows), ratios_of(rows, draft_rows)
        distance = mean_total_variation(rows, others)
        mean = ((others - rows) * np.minimum(ratios, MOST_RATIO)).sum(1)
        by_ratio.append((mean, distance))
        keys = np.where(rows > 0, -ratios, np.inf)
        by_rank.append((mean_smooth_scores(rows, others, keys), distance))
    for name, effects in (("towards the draft", by_ratio), ("by draft", by_rank)):
        test = tests.by_name[f"round start, {name}"]
        yield test.name, _rate(test, effects)


def _by_group(tests: ScoreTests, sample: SampledRows) -> tuple[str, float]:
    """Name of the test that detects raised odds of a group, and its rate for the worst group."""
    test = tests.by_name["emitted, by group"]
    member = np.eye(int(tests.groups.max()) + 1)[tests.groups]
    effects: list[list[tuple[Floats, float]]] = [[] for _ in range(member.shape[1])]
    for (rows,) in sample:
        for group, of_group in enumerate(effects):
            others = favoured(rows, tests.groups, group)
            mean = ((others - rows) @ member)[0]
            of_group.append((mean, mean_total_variation(rows, others)))
    # Groups without probability do not deviate; one that the test is blind for leaves no limit.
    rates = [
        _rate(test, of_group) for of_group in effects if any(distance for _, distance in of_group)
    ]
    return test.name, min(rates, default=0.0)


def _rate(test: ScoreTest, effects: Sequence[tuple[Floats, float]]) -> float:
    """Noncentrality of a test per outcome and squared total variation; 0 if nothing deviates.

    Args:
        effects: mean score and total variation at each sampled row.
    """
    means, distances = zip(*effects, strict=True)
    distance = float(np.mean(distances))
    return test.noncentrality(np.mean(means, axis=0)) / distance**2 if distance > 0 else 0.0


@lru_cache
def _needed(degrees: int, first_level: float, second_level: float, second_look: int) -> float:
    """Noncentrality of the first look at which both looks reject with probability POWER."""

    def excess(value: float) -> float:
        first = power(value, degrees, first_level)
        return first * power(second_look * value, degrees, second_level) - POWER

    return float(optimize.brentq(excess, 0.0, 4000.0))
