"""The simulator's models: rows that are probabilities, and what each promises besides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import DistributionError
from forerun.simulation.simulator import (
    MOCK_TARGET,
    Context,
    LanguageModel,
    MockModel,
)
from forerun.theory.inputs import as_row, softmax
from tests.helpers.small_models import NgramModel

CORPUS = "the cat sat on the mat and the dog sat on the cat while the red cat ran to the big mat "


CONTEXTS = st.lists(st.integers(0, 9), max_size=6).map(tuple)


def models() -> dict[str, LanguageModel]:
    return {
        "mock": MOCK_TARGET,
        "one token": MockModel(vocab_size=1),
        "characters": NgramModel.fit(CORPUS, 4),
        "words": NgramModel.fit(CORPUS, 2, unit="word"),
        "one character": NgramModel.fit("aaaa", 2),
    }


@pytest.mark.parametrize("name", models())
@given(context=CONTEXTS)
def test_rows_are_probabilities_and_functions_of_the_context(name: str, context: Context) -> None:
    model = models()[name]
    row = model(context)
    assert row.dtype == np.float64
    assert row.min() >= 0.0
    assert row.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.array_equal(row, model(context))


@pytest.mark.parametrize(
    "row",
    [[], [0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0], [[0.5, 0.5]], ["a", "b"]],
    ids=str,
)
def test_invalid_rows_are_refused(row: list[float]) -> None:
    with pytest.raises(DistributionError):
        as_row("a row", row)


def test_the_rounding_of_single_precision_is_scaled_away() -> None:
    """NumPy's choice would refuse such a row."""
    exact = np.random.default_rng(0).dirichlet(np.ones(1000))
    row = exact.astype(np.float32) * np.float32(1 + 5e-7)
    assert abs(row.astype(np.float64).sum() - 1.0) > 1e-7
    assert as_row("a row", row).sum() == pytest.approx(1.0, abs=1e-12)
    assert np.array_equal(as_row("a row", exact), exact)


@given(st.lists(st.floats(-1e3, 1e3) | st.just(-np.inf), min_size=1, max_size=6))
def test_softmax_takes_minus_infinity(logits: list[float]) -> None:
    if max(logits) == -np.inf:
        with pytest.raises(DistributionError):
            softmax(logits)
        return
    row = softmax(logits)
    assert row.sum() == pytest.approx(1.0)
    assert all(row[np.isneginf(logits)] == 0.0)
    assert np.allclose(row, softmax(np.array(logits) + 3.0))


@pytest.mark.parametrize(
    "logits",
    [[], [np.nan, 0.0], [np.inf, 0.0], [[0.0, 0.0], [-np.inf, -np.inf]], 1.0, ["a"]],
    ids=str,
)
def test_invalid_logits_are_refused(logits: list[float]) -> None:
    with pytest.raises(DistributionError):
        softmax(logits)
