"""The score tests hold their level, and have the power that is stated for them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.theory.goodness_of_fit import (
    MOST_RATIO,
    ScoreTest,
    drawn_to,
    favoured,
    group_scores,
    holm,
    mass_before,
    mean_smooth_scores,
    mean_total_variation,
    power,
    ratio_scores,
    ratios_of,
    sharpened,
    smooth_scores,
    surprise_scores,
    transform,
)
from forerun.theory.inputs import Floats, Ints

VOCAB = 12
GROUPS = np.arange(VOCAB) % 4


def some_rows(count: int, random: np.random.Generator, zeros: float = 0.2) -> Floats:
    rows = random.dirichlet(np.full(VOCAB, 0.6), size=count)
    rows[random.random(rows.shape) < zeros] = 0.0
    rows[rows.sum(1) == 0, 0] = 1.0
    return rows / rows.sum(1, keepdims=True)


def drawn(rows: Floats, random: np.random.Generator) -> Ints:
    points = random.random((len(rows), 1)) * rows.sum(1, keepdims=True)
    return (rows.cumsum(1) <= points).sum(1).clip(max=rows.shape[1] - 1)


@pytest.mark.parametrize(
    ("x", "degrees", "tail"),
    # Abramowitz and Stegun, table 26.7 and 26.8.
    [(3.841459, 1, 0.05), (9.21034, 2, 0.01), (16.2662, 3, 0.001), (13.2767, 4, 0.01),
     (18.4753, 7, 0.01), (20.0902, 8, 0.01), (40.2560, 20, 0.0046)],
)  # fmt: skip
def test_p_values_are_tails_of_chi_square(x: float, degrees: int, tail: float) -> None:
    test = ScoreTest("a test", degrees)
    test.add(np.zeros((100, degrees)))
    test.total[0] = math.sqrt(100 * x)
    assert (test.statistic, test.rank) == (pytest.approx(x), degrees)
    assert test.p_value == pytest.approx(tail, rel=0.01)


def test_power_is_the_share_of_rejections() -> None:
    random = np.random.default_rng(0)
    shifted = random.normal(size=(40_000, 4))
    shifted[:, 0] += 3.0
    share = ((shifted**2).sum(1) > 13.2767).mean()
    assert power(9.0, 4, 0.01) == pytest.approx(share, abs=0.01)
    assert power(0.0, 4, 0.01) == pytest.approx(0.01, rel=1e-6)


def test_smooth_scores_are_orthonormal() -> None:
    places = (np.arange(20_000) + 0.5) / 20_000
    scores = smooth_scores(places, 5)
    assert np.allclose(scores.mean(0), 0.0, atol=1e-3)
    assert np.allclose(scores.T @ scores / len(scores), np.eye(5), atol=1e-3)


@pytest.mark.parametrize("order", ["id", "rank"])
def test_the_transform_is_uniform_where_outcomes_follow_their_rows(order: str) -> None:
    """Also with zeros and certain rows, in any order; and it is not where they do not."""
    random = np.random.default_rng(1)
    rows = some_rows(40_000, random)
    rows[::10] = np.eye(VOCAB)[3]
    keys = None if order == "id" else -rows
    for followed, fits in ((rows, True), (sharpened(rows, 0.3), False)):
        chosen = drawn(followed, random)
        low, own = mass_before(rows, chosen, keys)
        places = np.sort(transform(low, own, random.random(len(rows))))
        distance = np.abs(places - np.arange(len(places)) / len(places)).max()
        # Kolmogorov and Smirnov, at a level of about 1e-5; sharper rows show in their own order.
        uniform = distance < 2.5 / math.sqrt(len(places))
        assert uniform == fits or (order == "id" and not fits)


def one_test(kind: str, rows: Floats, followed: Floats, random: np.random.Generator) -> ScoreTest:
    chosen = drawn(followed, random)
    test = ScoreTest(kind, 4)
    if kind == "group":
        test.add(*group_scores(rows, chosen, GROUPS))
    elif kind == "log probability":
        test = ScoreTest(kind, 1)
        test.add(*surprise_scores(rows, chosen))
    elif kind == "towards the draft":
        test = ScoreTest(kind, 1)
        ratios = ratios_of(rows, np.roll(rows, 1, axis=1))
        test.add(*ratio_scores(rows, ratios, chosen))
    else:
        low, own = mass_before(rows, chosen, -rows)
        test.add(smooth_scores(transform(low, own, random.random(len(rows)))))
    return test


@pytest.mark.parametrize("kind", ["group", "smooth", "log probability", "towards the draft"])
def test_the_level_is_held(kind: str) -> None:
    random = np.random.default_rng(2)
    values = []
    for _ in range(600):
        rows = some_rows(400, random)
        values.append(one_test(kind, rows, rows, random).p_value)
    for level in (0.5, 0.1, 0.05):
        share = np.mean(np.array(values) < level)
        assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / 600)


def test_rare_outcomes_that_decide_a_sum_are_not_tested() -> None:
    """Tokens of which one in 5,000 is drawn have log probabilities of -13, whose squares are 171."""
    rows = np.full((2000, 100), 2e-4 / 99)
    rows[:, 0] = 1.0 - 2e-4
    scores = surprise_scores(rows, np.zeros(2000, np.int64))
    test = ScoreTest("log probability", 1)
    test.add(*scores)
    assert test.covariance[0, 0] > 25.0
    assert test.rank == 0
    for _ in range(99):
        test.add(*scores)
    assert test.rank == 1


@pytest.mark.parametrize("kind", ["group", "smooth", "towards the draft"])
def test_the_power_is_what_the_noncentrality_says(kind: str) -> None:
    """Outcomes of a family of alternatives, at strengths for a power of about one half."""
    random = np.random.default_rng(3)
    rows = some_rows(1500, random)
    draft_rows = np.roll(rows, 1, axis=1)

    def towards_the_draft(strength: float) -> tuple[Floats, Floats]:
        followed = drawn_to(rows, draft_rows, strength)
        scores = (followed - rows) * np.minimum(ratios_of(rows, draft_rows), MOST_RATIO)
        return followed, scores.sum(1).mean(keepdims=True)

    def group(strength: float) -> tuple[Floats, Floats]:
        followed = favoured(rows, GROUPS, 1, strength)
        return followed, ((followed - rows) @ np.eye(4)[GROUPS]).mean(0)

    def smooth(strength: float) -> tuple[Floats, Floats]:
        followed = sharpened(rows, strength)
        return followed, mean_smooth_scores(rows, followed, -rows)

    family, strengths = {
        "towards the draft": (towards_the_draft, (0.015, 0.03)),
        "group": (group, (0.08, 0.16)),
        "smooth": (smooth, (0.08, 0.16)),
    }[kind]
    found = []
    for strength in strengths:
        followed, mean = family(strength)
        test = one_test(kind, rows, rows, random)
        stated = power(test.noncentrality(mean) * len(rows), test.rank, 0.05)
        seen = [one_test(kind, rows, followed, random).p_value < 0.05 for _ in range(150)]
        assert np.mean(seen) == pytest.approx(stated, abs=4 * math.sqrt(0.25 / 150))
        found.append(stated)
    assert 0.1 < found[0] < found[1]


def test_mean_scores_of_the_distribution_itself_are_zero() -> None:
    rows = some_rows(50, np.random.default_rng(4))
    assert np.allclose(mean_smooth_scores(rows, rows, -rows), 0.0, atol=1e-12)


def test_rare_tokens_do_not_decide_how_far_outcomes_lean_to_the_draft() -> None:
    """One token in a million that the draft is sure of counts a bounded number of times."""
    rows = np.tile([1e-6, 0.5, 0.5 - 1e-6], (100, 1))
    ratios = np.tile([1e6, 0.0, 0.0], (100, 1))
    scores, _, _ = ratio_scores(rows, ratios, np.repeat([0, 1], 50))
    assert scores[:50] == pytest.approx(MOST_RATIO, rel=1e-4)
    assert np.allclose(scores[50:], -MOST_RATIO * 1e-6)


@given(st.integers(0, 1000))
def test_families_are_distributions_and_exclude_what_the_target_excludes(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, draft_rows = some_rows(5, random), some_rows(5, random)
    for others in (sharpened(rows), drawn_to(rows, draft_rows), favoured(rows, GROUPS, 0)):
        assert np.allclose(others.sum(1), 1.0)
        assert (others >= 0).all()
        assert (others[rows == 0] == 0).all()
        assert 0.0 <= mean_total_variation(rows, others) < 0.02


def test_what_cannot_come_out_otherwise_is_no_test() -> None:
    """Certain rows have no covariance: no degree of freedom, nothing to reject."""
    rows = np.tile(np.eye(VOCAB)[2], (100, 1))
    test = ScoreTest("group", 4)
    test.add(*group_scores(rows, np.full(100, 2), GROUPS))
    assert test.rank == 0
    assert test.p_value == 1.0


@given(st.lists(st.floats(0.0, 1.0), max_size=12))
def test_holm(p_values: list[float]) -> None:
    """Never below the value itself nor above Bonferroni's, and in the same order."""
    adjusted = holm(p_values)
    for one, value in zip(adjusted, p_values, strict=True):
        assert value <= one <= min(1.0, len(p_values) * value) or one == pytest.approx(value)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert all(adjusted[a] <= adjusted[b] for a, b in itertools.pairwise(order))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, 0.04, 0.03], [2.0, 1.0, 1.0]) == pytest.approx([0.02, 0.06, 0.06])
    assert holm([0.01, 0.04, 0.03], [1.0, 4.0, 1.0]) == pytest.approx([0.06, 0.06, 0.06])
