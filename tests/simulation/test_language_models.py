"""The simulator's models: rows that are probabilities, and what each promises besides."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.errors import ConfigError, DistributionError, UnknownNameError
from forerun.simulation.language_models import (
    MOCK_TARGET,
    Context,
    LanguageModel,
    MockModel,
    NgramModel,
)
from forerun.theory.inputs import as_row, softmax

CORPUS = "the cat sat on the mat and the dog sat on the cat while the red cat ran to the big mat "


def ids_of(model: NgramModel, text: str) -> Context:
    """Token ids of a text's characters, or of its words."""
    tokens = text if all(len(token) == 1 for token in model.vocabulary) else text.split()
    return tuple(model.vocabulary.index(token) for token in tokens)


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


def test_counts_of_an_ngram_model_by_hand() -> None:
    """a b a b a: after a comes b twice; Witten-Bell over the row of single tokens."""
    model = NgramModel.fit("ababa", 2)
    single = (3 + 2 * 0.5) / (5 + 2)  # three a in five, two kinds, half from the uniform row
    assert model(()) == pytest.approx([single, 1 - single])
    after_a = (0 + 1 * single) / (2 + 1)
    assert model((0,)) == pytest.approx([after_a, 1 - after_a])


def test_only_the_last_tokens_count() -> None:
    model = NgramModel.fit(CORPUS, 3)
    start = ids_of(model, "the c")
    assert np.array_equal(model(start), model(start[-2:]))
    assert not np.array_equal(model(start), model(start[-1:]))
    assert np.array_equal(NgramModel.fit(CORPUS, 1)(start), NgramModel.fit(CORPUS, 1)(()))


def test_what_was_never_seen_backs_off() -> None:
    model = NgramModel.fit(CORPUS, 3)
    never = ids_of(model, "zz") if "z" in model.vocabulary else ids_of(model, "gm")
    assert "gm" not in CORPUS
    assert np.array_equal(model(never), model(never[-1:]))


@pytest.mark.parametrize("unit", ["character", "word"])
def test_higher_orders_fit_their_text_better(unit: str) -> None:
    def bits(order: int) -> float:
        model = NgramModel.fit(CORPUS * 3, order, unit=unit)
        ids = ids_of(model, CORPUS)
        return -sum(np.log2(model(ids[:index])[token]) for index, token in enumerate(ids))

    by_order = [bits(order) for order in (1, 2, 3)]
    assert by_order == sorted(by_order, reverse=True)


@given(st.text(string.ascii_lowercase + " ", min_size=1, max_size=60), st.integers(1, 4))
def test_no_token_is_impossible(written: str, order: int) -> None:
    assume(len(written) >= order)
    assume(written.strip())
    model = NgramModel.fit(written, order)
    assert model.vocabulary == tuple(sorted(set(written)))
    assert model(ids_of(model, written)).min() > 0.0


def test_a_pair_over_one_vocabulary() -> None:
    target = NgramModel.fit(CORPUS, 3)
    draft = NgramModel.fit("the cat", 2, vocabulary=target.vocabulary)
    assert draft.vocab_size == target.vocab_size
    assert draft.vocabulary == target.vocabulary


@pytest.mark.parametrize(
    ("written", "order", "options"),
    [
        ("", 1, {}),
        ("ab", 3, {}),
        ("one two", 3, {"unit": "word"}),
        (" \n ", 1, {"unit": "word"}),
        ("abc", 0, {}),
        ("abc", -1, {}),
        ("abc", 1.5, {}),
        ("abc", 1, {"vocabulary": "ab"}),
        ("abc", 1, {"vocabulary": []}),
        (None, 1, {}),
        (b"abc", 1, {}),
        ("\ud800", 1, {}),
    ],
    ids=str,
)
def test_texts_that_cannot_be_fitted(written: str, order: int, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        NgramModel.fit(written, order, **options)
    assert "\n" not in str(caught.value)


def test_a_text_of_just_the_order_is_enough() -> None:
    assert NgramModel.fit("abc", 3)((0, 1)).argmax() == 2


def test_an_unknown_unit_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'word'"):
        NgramModel.fit("a b", 1, unit="words")


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
