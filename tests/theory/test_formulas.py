"""The formulas against sums, published tables, brute force and the rules that ship."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.errors import ConfigError
from forerun.theory import acceptance, formulas
from forerun.theory.formulas import expected_tokens, optimal_length, speedup

NAN, INF = float("nan"), float("inf")
ALPHAS = st.floats(0.0, 1.0)
LENGTHS = st.integers(0, 40)
RATIOS = st.floats(0.0, 3.0)


@given(ALPHAS, LENGTHS)
def test_expected_tokens_is_the_geometric_sum(alpha: float, length: int) -> None:
    plain_sum = math.fsum(alpha**power for power in range(length + 1))
    assert expected_tokens(alpha, length) == pytest.approx(plain_sum, rel=1e-13)
    assert formulas.expected_accepted(alpha, length) == pytest.approx(plain_sum - 1, abs=1e-12)


@given(st.floats(0.0, 1e-6), LENGTHS)
def test_expected_tokens_is_right_next_to_one(gap: float, length: int) -> None:
    """The second-order expansion; (1 - alpha^n) / (1 - alpha) has lost ten digits here."""
    n = length + 1
    nearby = n - gap * n * (n - 1) / 2 + gap**2 * n * (n - 1) * (n - 2) / 6
    assert expected_tokens(1.0 - gap, length) == pytest.approx(nearby, rel=1e-12)


def test_expected_tokens_at_its_ends() -> None:
    assert expected_tokens(1.0, 5) == 6.0
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(0.9, 0) == 1.0
    assert expected_tokens(0.5, 1 << 31) == 2.0
    found = np.asarray(expected_tokens([[0.5], [1.0]], [0, 1, 2]))
    assert found.tolist() == [[1.0, 1.5, 1.75], [1.0, 2.0, 3.0]]
    assert np.shape(expected_tokens([], 3)) == (0,)


@given(ALPHAS, st.integers(1, 40))
def test_the_quantities_called_acceptance_differ(alpha: float, length: int) -> None:
    per_drafted = formulas.accepted_per_drafted(alpha, length)
    assert per_drafted <= alpha + 1e-12
    assert formulas.tokens_per_drafted(alpha, length) == pytest.approx(per_drafted + 1 / length)


# Leviathan et al., table 1: operations and speed-up for free drafts.
@pytest.mark.parametrize(
    ("alpha", "length", "operations", "gain"),
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_the_table_of_the_paper(alpha: float, length: int, operations: float, gain: float) -> None:
    # A free draft: length + 1 tokens are checked a round.
    assert (length + 1) / expected_tokens(alpha, length) == pytest.approx(operations, abs=0.005)
    assert speedup(alpha, length, 0.0) == pytest.approx(gain, abs=0.005)


@given(ALPHAS, RATIOS, st.integers(0, 20), st.floats(0.5, 2.0))
def test_the_optimal_length_is_the_best_of_all(
    alpha: float, ratio: float, longest: int, checking: float
) -> None:
    best = optimal_length(alpha, ratio, longest, verification_cost=checking)
    gains = [speedup(alpha, n, ratio, verification_cost=checking) for n in range(1, longest + 1)]
    if best == 0:
        assert all(gain <= 1.0 for gain in gains)
    else:
        assert gains[best - 1] == max(gains)
        assert gains[best - 1] > 1.0
        assert all(gain < max(gains) for gain in gains[: best - 1])


@given(ALPHAS, RATIOS)
def test_speculation_pays_exactly_where_acceptance_exceeds_the_cost(
    alpha: float, ratio: float
) -> None:
    assume(abs(alpha - ratio) > 1e-9)
    assert (optimal_length(alpha, ratio) > 0) == (alpha > ratio)


def test_the_optimal_length_of_a_free_and_perfect_draft_is_the_longest() -> None:
    assert optimal_length(1.0, 0.0) == 64
    assert optimal_length(1.0, 0.0, longest=7) == 7
    assert optimal_length(0.0, 0.0) == 0
    # Checking three tokens costs twice as much as checking two here.
    assert optimal_length(0.9, 0.0, longest=2, verification_cost=[1.0, 2.0]) == 1


@given(ALPHAS, LENGTHS, RATIOS)
def test_no_speedup_passes_its_ceilings(alpha: float, length: int, ratio: float) -> None:
    gain = speedup(alpha, length, ratio)
    assert gain <= formulas.acceptance_ceiling(alpha) * (1 + 1e-12)
    assert gain <= speedup(1.0, length, ratio) * (1 + 1e-12)
    assert gain >= speedup(0.0, length, ratio) * (1 - 1e-12)


def test_ceilings_are_approached() -> None:
    assert formulas.acceptance_ceiling([0.8, 1.0]) == pytest.approx([5.0, INF])
    assert speedup(0.8, 1000, 0.0) == pytest.approx(5.0)


@given(st.integers(1, 40), RATIOS, st.floats(0.1, 4.0))
def test_at_break_even_nothing_is_won_or_lost(length: int, ratio: float, checking: float) -> None:
    cost = {"verification_cost": checking}
    alpha = float(formulas.break_even_acceptance(length, ratio, **cost))
    if math.isnan(alpha):
        assert speedup(1.0, length, ratio, **cost) < 1.0
    elif alpha == 0.0:
        assert speedup(0.0, length, ratio, **cost) >= 1.0 - 1e-12
    else:
        assert speedup(alpha, length, ratio, **cost) == pytest.approx(1.0, abs=1e-9)
        assert speedup(0.99 * alpha, length, ratio, **cost) < 1.0


def test_break_even_of_one_token_is_the_cost_ratio() -> None:
    found = formulas.break_even_acceptance(1, [0.0, 0.3, 1.0, 1.5])
    assert found == pytest.approx([0.0, 0.3, 1.0, NAN], nan_ok=True)
    assert formulas.break_even_acceptance(0, 0.5) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: expected_tokens(1.0001, 3),
        lambda: expected_tokens(-0.1, 3),
        lambda: expected_tokens(NAN, 3),
        lambda: expected_tokens([0.5, 2.0], 3),
        lambda: expected_tokens("0.5", 3),
        lambda: expected_tokens(True, 3),
        lambda: expected_tokens(0.5, -1),
        lambda: expected_tokens(0.5, 2.5),
        lambda: expected_tokens(0.5, True),
        lambda: expected_tokens([0.1, 0.2], [1, 2, 3]),
        lambda: formulas.accepted_per_drafted(0.5, 0),
        lambda: formulas.tokens_per_drafted(0.5, 0),
        lambda: speedup(0.5, 3, -0.1),
        lambda: speedup(0.5, 3, NAN),
        lambda: speedup(0.5, 3, INF),
        lambda: speedup(0.5, 3, 0.1, verification_cost=0.0),
        lambda: formulas.round_speedup(2.0, -1.0),
        lambda: optimal_length(1.5, 0.1),
        lambda: optimal_length(0.5, NAN),
        lambda: optimal_length(0.5, 0.1, longest=-1),
        lambda: optimal_length(0.5, 0.1, 2, verification_cost=[[1.0], [2.0]]),
        lambda: formulas.acceptance_ceiling(2.0),
        lambda: formulas.break_even_acceptance(3, -1.0),
        lambda: acceptance.block_rule_survival(np.ones((2, 1)), np.ones((3, 1))),
        lambda: acceptance.token_rule_survival([np.ones((2, 1))], [np.ones((2, 1))]),
        lambda: acceptance.token_rule_survival(np.full((30, 4), 0.25), np.full((30, 4), 0.25)),
        lambda: acceptance.sibling_acceptance([1.0], [1.0], 0),
        lambda: acceptance.distinct_sibling_acceptance([[1.0]], [[1.0]], 2),
        lambda: acceptance.distinct_sibling_acceptance(np.full(50, 0.02), np.full(50, 0.02), 9),
    ],
)
def test_what_is_out_of_range_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
