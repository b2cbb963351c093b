"""What the statistics would have caught: the smallest total variation by family of alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from forerun.proof.battery import Battery, SampledRows
from forerun.theory.alternatives import drawn_to, favoured, mean_total_variation, sharpened
from forerun.theory.goodness_of_fit import Floats, bisect, mean_smooth_scores, power

POWER = 0.9
# Further off a family is no longer in proportion to its strength; such a limit is not stated.
_LARGEST = 0.25

FAMILIES = {
    "temperature": "rows to a power, as when drawn at another temperature",
    "towards the draft": "rows mixed with the draft's, as when drafted tokens are accepted too easily",
    "token group": "the odds of a group of tokens raised, as by a wrong mask or bias; the worst group",
}


@dataclass(frozen=True)
class Limit:
    """The smallest deviation that would have been caught.

    Args:
        family: its name.
        meaning: what it stands for.
        test: the test that would have caught it.
        total_variation: averaged over the tokens that the test is about.
        power: with which probability, over both looks.
    """

    family: str
    meaning: str
    test: str
    total_variation: float
    power: float = POWER


def limits(
    tests: Battery, rows: SampledRows, starts: SampledRows, level: float, second_look: int
) -> Iterator[Limit]:
    """The limit of each family. A single test of the family counts, at Holm's first and strictest
    step, so the power is a lower bound.

    Args:
        tests: that were made.
        rows: some of the target's rows.
        starts: some pairs of rows of target and draft at the start of rounds.
        level: of each look.
        second_look: how many times the outcomes of the first look the second one has.
    """
    found = {}
    if rows.rows:
        (p,) = rows.stacked()
        found["temperature"] = _by_rank(tests, p)
        found["token group"] = _by_group(tests, p)
    if starts.rows:
        found["towards the draft"] = _by_draft(tests, *starts.stacked())
    for family, meaning in FAMILIES.items():
        name, rate = found.get(family, ("", 0.0))
        # A rate of zero: the rows leave nothing to move, or there are too few of them.
        if not rate > 0:
            continue
        test = tests.by_name[name]
        needed = _needed(test.rank, level / len(tests.by_name), second_look)
        distance = float((needed / (test.count * rate)) ** 0.5)
        if distance <= _LARGEST:
            yield Limit(family, meaning, name, distance)


def _by_rank(tests: Battery, rows: Floats) -> tuple[str, float]:
    """The test that sees a temperature, and the noncentrality that an outcome adds per squared
    total variation."""
    name = "emitted, by rank"
    others = sharpened(rows)
    mean = mean_smooth_scores(rows, others, -rows)
    return name, _rate(tests.by_name[name].noncentrality(mean), mean_total_variation(rows, others))


def _by_draft(tests: Battery, rows: Floats, draft_rows: Floats) -> tuple[str, float]:
    name = "round start, by draft"
    others = drawn_to(rows, draft_rows)
    ratio = np.divide(draft_rows, rows, out=np.zeros_like(rows), where=rows > 0)
    mean = mean_smooth_scores(rows, others, np.where(rows > 0, -ratio, np.inf))
    return name, _rate(tests.by_name[name].noncentrality(mean), mean_total_variation(rows, others))


def _by_group(tests: Battery, rows: Floats) -> tuple[str, float]:
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
    """The noncentrality of the first look with which both looks reject with probability POWER."""
    return bisect(
        lambda value: (
            power(value, degrees, level) * power(second_look * value, degrees, level) - POWER
        ),
        0.0,
        4000.0,
    )
