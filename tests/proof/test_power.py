"""A deviation at the stated limit is caught as often as it is stated, over both looks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from forerun.proof.battery import Battery, SampledRows, assign_groups
from forerun.proof.power import FAMILIES, POWER, Limit, limits
from forerun.theory.alternatives import drawn_to, favoured, mean_total_variation, sharpened
from forerun.theory.goodness_of_fit import Floats, bisect

VOCAB, COUNT, LEVEL, SECOND = 24, 2500, 0.01, 2
Family = Callable[[Floats, Floats, float], Floats]


def rows_of(count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """A target's rows and a draft's that agrees with them somewhat, [count, VOCAB] each."""
    logits = 1.5 * random.standard_normal((count, VOCAB))
    rows = np.stack([logits, logits + random.standard_normal(logits.shape)])
    rows = np.exp(rows - rows.max(-1, keepdims=True))
    one, other = rows / rows.sum(-1, keepdims=True)
    return one, other


def look(
    groups: np.ndarray, random: np.random.Generator, count: int, family: Family, strength: float
) -> tuple[Battery, SampledRows, SampledRows]:
    """Outcomes that follow what the family makes of the rows, judged by the rows."""
    rows, draft_rows = rows_of(count, random)
    laws = family(rows, draft_rows, strength)
    chosen = (laws.cumsum(1) <= random.random((count, 1))).sum(1).clip(max=VOCAB - 1)
    tests, sampled, starts = Battery(random, groups), SampledRows(random), SampledRows(random)
    tests.place("emitted, by rank", rows, chosen, -rows)
    tests.group("emitted, by group", rows, chosen)
    tests.place("round start, by draft", rows, chosen, -draft_rows / rows)
    for row, draft_row in zip(rows, draft_rows, strict=True):
        sampled.offer(row)
        starts.offer(row, draft_row)
    return tests, sampled, starts


def limit_of(name: str, groups: np.ndarray, random: np.random.Generator) -> Limit:
    fed = look(groups, random, COUNT, lambda rows, *_: rows, 0.0)
    (found,) = [one for one in limits(*fed, LEVEL, SECOND) if one.family == name]
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_deviation_at_the_limit_is_caught(name: str) -> None:
    random = np.random.default_rng(5)
    groups = assign_groups(VOCAB, random)
    families: dict[str, Family] = {
        "temperature": lambda rows, _, strength: sharpened(rows, strength),
        "towards the draft": lambda rows, draft_rows, strength: drawn_to(
            rows, draft_rows, strength
        ),
        "token group": lambda rows, _, strength: favoured(rows, groups, 1, strength),
    }
    family = families[name]
    limit = limit_of(name, groups, random)
    rows, draft_rows = rows_of(2000, random)
    strength = bisect(
        lambda one: (
            mean_total_variation(rows, family(rows, draft_rows, one)) - limit.total_variation
        ),
        0.0,
        5.0,
    )
    caught = []
    for _ in range(100):
        both = []
        for count in (COUNT, SECOND * COUNT):
            tests, _, _ = look(groups, random, count, family, strength)
            test = tests.by_name[limit.test]
            both.append(test.p_value < LEVEL / len(tests.by_name))
        caught.append(all(both))
    # Four standard errors of a share of 100; the worst group is not the first one, so more is fine.
    assert np.mean(caught) > POWER - 4 * math.sqrt(POWER * (1 - POWER) / 100)


def test_limits_fall_with_the_square_root_and_end_where_they_mean_nothing() -> None:
    random = np.random.default_rng(6)
    groups = assign_groups(VOCAB, random)
    for name in FAMILIES:
        few = look(groups, random, COUNT // 4, lambda rows, *_: rows, 0.0)
        many = look(groups, random, COUNT, lambda rows, *_: rows, 0.0)
        ratio = [
            next(one.total_variation for one in limits(*fed, LEVEL, SECOND) if one.family == name)
            for fed in (few, many)
        ]
        assert ratio[0] / ratio[1] == pytest.approx(2.0, rel=0.25)
    none = look(groups, random, 8, lambda rows, *_: rows, 0.0)
    assert list(limits(*none, LEVEL, SECOND)) == []
