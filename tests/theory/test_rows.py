"""One drafted token against one target row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from forerun.errors import DistributionError
from forerun.theory import acceptance
from forerun.theory.acceptance import acceptance_rate, corrected_distribution, total_variation
from tests.helpers.theory_strategies import row_pairs

NAN, INF = float("nan"), float("inf")


@given(row_pairs())
def test_acceptance_is_one_less_the_total_variation(pair: tuple[np.ndarray, np.ndarray]) -> None:
    p, q = pair
    assert acceptance_rate(p, q) == pytest.approx(1.0 - total_variation(p, q), abs=1e-12)
    assert acceptance_rate(p, q) == acceptance_rate(q, p)
    assert 0.0 <= acceptance_rate(p, q) <= acceptance_rate(p, p) + 1e-12
    by_token = sum(y * min(1.0, x / y) for x, y in zip(p, q, strict=True) if y > 0)
    assert acceptance_rate(p, q) == pytest.approx(by_token)


@given(row_pairs())
def test_accepted_and_recovered_tokens_make_up_the_target(
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    p, q = pair
    recovered = corrected_distribution(p, q)
    assert recovered.sum() == pytest.approx(1.0)
    assert np.minimum(p, q) + total_variation(p, q) * recovered == pytest.approx(p, abs=1e-12)
    assert np.array_equal(corrected_distribution(p, p), p)


@given(row_pairs())
def test_coupled_draws_meet_as_often_as_they_can_be_shown_to(
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    apart = total_variation(*pair)
    met = acceptance.coupled_acceptance_rate(*pair)
    assert (1 - apart) / (1 + apart) - 1e-12 <= met <= 1 - apart + 1e-12


def test_coupled_draws_are_the_gumbel_argmax() -> None:
    random = np.random.default_rng(1)
    p, q = random.dirichlet(np.ones(5)), random.dirichlet(np.ones(5))
    noise = random.gumbel(size=(200_000, 5))
    met = np.mean((np.log(p) + noise).argmax(1) == (np.log(q) + noise).argmax(1))
    assert abs(met - acceptance.coupled_acceptance_rate(p, q)) < 4 * 0.5 / math.sqrt(200_000)


def test_rows_broadcast_and_take_single_precision() -> None:
    random = np.random.default_rng(0)
    p, q = random.dirichlet(np.ones(50), size=(4, 1)), random.dirichlet(np.ones(50), size=3)
    assert np.shape(acceptance_rate(p, q)) == (4, 3)
    assert corrected_distribution(p, q).shape == (4, 3, 50)
    single = p.astype(np.float32)
    assert acceptance_rate(single, q) == pytest.approx(np.asarray(acceptance_rate(p, q)), abs=1e-6)
    assert np.allclose(corrected_distribution(single, q).sum(-1), 1.0, atol=1e-12)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.5, 0.4], [0.5, 0.5]),
        ([0.5, 0.5], [0.5, 0.6]),
        ([1.5, -0.5], [0.5, 0.5]),
        ([NAN, 1.0], [0.5, 0.5]),
        ([INF, 0.0], [0.5, 0.5]),
        ([0.5, 0.5], [0.2, 0.3, 0.5]),
        ([], []),
        (1.0, 1.0),
        ([["0.5", "0.5"]], [0.5, 0.5]),
        ([[0.5, 0.5], [1.0]], [0.5, 0.5]),
    ],
    ids=str,
)
def test_rows_that_are_no_probabilities_are_refused(p: Any, q: Any) -> None:
    functions: list[Callable[..., Any]] = [
        total_variation,
        acceptance_rate,
        corrected_distribution,
        acceptance.coupled_acceptance_rate,
    ]
    for function in (*functions, lambda p, q: acceptance.sibling_acceptance(p, q, 2)):
        with pytest.raises(DistributionError) as caught:
            function(p, q)
        assert "\n" not in str(caught.value)
