"""A deviation at the stated limit is caught with the stated probability, over both looks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from forerun.proof.power import FAMILIES, POWER, Limit, limits
from forerun.proof.score_tests import WEIGHTS, SampledRows, ScoreTests, assign_groups
from forerun.proof.statistics import levels_of
from forerun.theory.goodness_of_fit import drawn_to, favoured, mean_total_variation, sharpened
from forerun.theory.inputs import Floats

VOCAB, COUNT, SECOND = 24, 2500, 2
LEVELS = levels_of(0.01)
Family = Callable[[Floats, Floats, float], Floats]


def rows_of(count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Rows of a target and of a draft that partly agrees with it, [count, VOCAB] each."""
    logits = 1.5 * random.standard_normal((count, VOCAB))
    rows = np.stack([logits, logits + random.standard_normal(logits.shape)])
    rows = np.exp(rows - rows.max(-1, keepdims=True))
    target_rows, draft_rows = rows / rows.sum(-1, keepdims=True)
    return target_rows, draft_rows


def score(
    rows: Floats,
    draft_rows: Floats,
    actual: Floats,
    groups: np.ndarray,
    random: np.random.Generator,
) -> ScoreTests:
    """Score tests against `rows` of outcomes that follow `actual`, [N, VOCAB] each."""
    chosen = (actual.cumsum(1) <= random.random((len(actual), 1))).sum(1).clip(max=VOCAB - 1)
    tests = ScoreTests(random, groups)
    tests.add_surprise("emitted, by log probability", rows, chosen)
    tests.add_groups("emitted, by group", rows, chosen)
    tests.add("round start, by draft", rows, chosen, -draft_rows / rows)
    tests.add_ratios("round start, towards the draft", rows, draft_rows / rows, chosen)
    return tests


def limits_after(
    count: int, groups: np.ndarray, random: np.random.Generator, *, alike: float = 0.0
) -> dict[str, Limit]:
    """The limits after `count` outcomes that follow their rows, by family.

    Args:
        alike: share of the draft's rows that are the target's.
    """
    rows, draft_rows = rows_of(count, random)
    same = random.random(count) < alike
    draft_rows[same] = rows[same]
    tests = score(rows, draft_rows, rows, groups, random)
    sampled, starts = SampledRows(random), SampledRows(random)
    for row, draft_row in zip(rows, draft_rows, strict=True):
        sampled.offer(row)
        starts.offer(row, draft_row)
    return {limit.family: limit for limit in limits(tests, sampled, starts, LEVELS, SECOND)}


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("temperature", 25),
        *(pytest.param(name, 100, marks=pytest.mark.slow) for name in FAMILIES),
    ],
)
def test_a_deviation_at_the_limit_is_caught(name: str, trials: int) -> None:
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
    limit = limits_after(COUNT, groups, random)[name]
    rows, draft_rows = rows_of(2000, random)
    strength = optimize.brentq(
        lambda value: (
            mean_total_variation(rows, family(rows, draft_rows, value)) - limit.total_variation
        ),
        0.0,
        5.0,
    )
    caught = []
    for _ in range(trials):
        both = []
        for count, level in zip((COUNT, SECOND * COUNT), LEVELS, strict=True):
            rows, draft_rows = rows_of(count, random)
            actual = family(rows, draft_rows, strength)
            tests = score(rows, draft_rows, actual, groups, random)
            test = tests.by_name[limit.test]
            share = WEIGHTS[limit.test] / sum(WEIGHTS[name] for name in tests.by_name)
            both.append(test.p_value < share * level)
        caught.append(all(both))
    # Four standard errors. The first group is not the worst, so more is fine.
    assert np.mean(caught) > POWER - 4 * math.sqrt(POWER * (1 - POWER) / trials)


@given(st.floats(1e-6, 1.0, exclude_max=True))
def test_two_looks_have_the_square_of_the_level(level: float) -> None:
    first, second = levels_of(level)
    assert 0.0 < second <= level <= first <= max(level, 0.05)
    assert first * second == pytest.approx(level**2)


def test_limits_fall_with_the_square_root_and_are_not_stated_after_few_outcomes() -> None:
    random = np.random.default_rng(6)
    groups = assign_groups(VOCAB, random)
    few, many = (limits_after(count, groups, random) for count in (COUNT // 4, COUNT))
    for name in FAMILIES:
        ratio = few[name].total_variation / many[name].total_variation
        assert ratio == pytest.approx(2.0, rel=0.25)
    assert limits_after(8, groups, random) == {}


def test_a_draft_that_seldom_differs_is_judged_by_ranks() -> None:
    """Its ratios vary too little for a test of their own; the ranks of its preference do not."""
    random = np.random.default_rng(7)
    groups = assign_groups(VOCAB, random)
    found = [limits_after(COUNT, groups, random, alike=alike) for alike in (0.0, 0.99)]
    assert [few["towards the draft"].test for few in found] == [
        "round start, towards the draft",
        "round start, by draft",
    ]


def test_no_limit_is_stated_for_a_group_that_the_test_is_blind_for() -> None:
    """Two of four groups occur in one row of a hundred: too seldom for the test, but they can deviate."""
    random = np.random.default_rng(8)
    rows = np.zeros((4000, 4))
    rows[:, :2] = 0.5
    rows[::100] = [0.0, 0.0, 0.5, 0.5]
    found = []
    for usual in (rows[1::100].repeat(100, axis=0), rows):
        tests, sampled = ScoreTests(random, np.arange(4)), SampledRows(random)
        chosen = (usual.cumsum(1) <= random.random((len(usual), 1))).sum(1).clip(max=3)
        tests.add_groups("emitted, by group", usual, chosen)
        tests.add_surprise("emitted, by log probability", usual, chosen)
        for row in usual:
            sampled.offer(row)
        stated = limits(tests, sampled, SampledRows(random), LEVELS, SECOND)
        found.append([limit.family for limit in stated])
    assert found == [["token group"], []]
