"""What the simulated loops count agrees with itself, with the formulas, and holds its intervals."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ConfigError, DistributionError
from forerun.measure.intervals import Estimate, ratio_of_dependent_means, ratio_of_means
from forerun.simulation.simulator import (
    MOCK_DRAFT,
    MOCK_TARGET,
    Context,
    MockModel,
    Simulation,
    speculative,
)
from forerun.theory import formulas
from forerun.theory.acceptance import acceptance_rate
from tests.helpers.small_models import GreedyModel, NgramModel, TableModel
from tests.helpers.theory_strategies import RandomRows

NAN = float("nan")


def tokens_estimate(run: Simulation) -> Estimate:
    emitted = [len(entry.token_ids) for entry in run.rounds]
    return ratio_of_dependent_means(emitted, np.ones(len(emitted)))


@pytest.mark.parametrize("rng", [np.random.RandomState(3), np.random.default_rng(3)], ids=str)
def test_independent_rounds_of_a_table_agree_with_the_formulas(rng: Any) -> None:
    p, q = [0.5, 0.3, 0.2], [0.3, 0.2, 0.5]
    outcome = speculative(TableModel(p), TableModel(q), (), 6000, rng, 4)
    alpha = acceptance_rate(p, q)
    for estimate, wanted in (
        (tokens_estimate(outcome), formulas.expected_tokens(alpha, 4)),
        (outcome.speedup(0.1), formulas.speedup(alpha, 4, 0.1)),
    ):
        low, high = estimate.interval(0.999)
        assert low < wanted < high
        assert high - low < 0.3
    assert outcome.tested_acceptance == pytest.approx(alpha, abs=0.03)
    assert outcome.acceptance_rate == pytest.approx(
        formulas.accepted_per_drafted(alpha, 4), abs=0.03
    )
    by_position = [alpha**place for place in range(1, 5)]
    shares = [np.mean([entry.accepted > place for entry in outcome.rounds]) for place in range(4)]
    assert shares == pytest.approx(by_position, abs=0.05)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(0, 6), st.integers(1, 30))
def test_the_counts_fit_together(seed: int, vocab_size: int, length: int, num_tokens: int) -> None:
    target, draft = RandomRows(vocab_size, seed), RandomRows(vocab_size, seed + 1)
    rng = np.random.default_rng(seed)
    outcome = speculative(target, draft, (0,), num_tokens, rng, length)
    emitted = [token for entry in outcome.rounds for token in entry.token_ids]
    assert outcome.token_ids == tuple(emitted[:num_tokens])
    assert len(outcome.token_ids) == num_tokens
    assert outcome.target_calls == len(outcome.rounds)
    assert outcome.accepted + outcome.target_calls == len(emitted)
    assert outcome.tokens_per_round == pytest.approx(len(emitted) / outcome.target_calls)
    assert outcome.drafted == length * outcome.target_calls
    assert all(entry.accepted <= entry.drafted == length for entry in outcome.rounds)
    cost = outcome.target_calls + 0.25 * outcome.drafted
    assert outcome.speedup(0.25).value == pytest.approx(len(emitted) / cost)
    assert 0.0 <= outcome.acceptance_rate <= max(outcome.tested_acceptance, 1e-12) <= 1.0


def test_a_perfect_draft_reaches_the_ceiling() -> None:
    outcome = speculative(MOCK_TARGET, MOCK_TARGET, (0,), 60, np.random.default_rng(0), 5)
    assert (outcome.accepted, outcome.target_calls) == (50, 10)
    assert outcome.speedup(0.1).value == pytest.approx(formulas.speedup(1.0, 5, 0.1))
    assert tokens_estimate(outcome) == Estimate(6.0, 0.0)


def test_a_vocabulary_of_one_token() -> None:
    single = MockModel(vocab_size=1)
    outcome = speculative(single, single, (), 10, np.random.default_rng(0), 4)
    assert outcome.token_ids == (0,) * 10
    assert outcome.target_calls == 2


@given(st.integers(0, 1000), st.integers(0, 5))
def test_greedy_speculation_is_greedy_decoding(seed: int, length: int) -> None:
    target, draft = GreedyModel(RandomRows(4, seed)), GreedyModel(RandomRows(4, seed + 1))
    rng = np.random.default_rng(seed)
    tokens: tuple[int, ...] = ()
    while len(tokens) < 20:
        tokens += (int(np.argmax(target(tokens))),)
    assert speculative(target, draft, (), 20, rng, length).token_ids == tokens


def test_no_draft_is_plain_decoding() -> None:
    rng = np.random.default_rng(0)
    tokens = [0]
    for _ in range(30):
        tokens.append(int(rng.choice(10, p=MOCK_TARGET(tuple(tokens)))))
    plain = speculative(MOCK_TARGET, MOCK_DRAFT, (0,), 30, np.random.default_rng(0), 0)
    assert plain.token_ids == tuple(tokens[1:])
    assert (plain.target_calls, plain.speedup(0.3).value, plain.drafted) == (30, 1.0, 0)
    assert plain.acceptance_rate == plain.tested_acceptance == 0.0


def test_a_pair_of_ngram_models_pays_where_the_draft_is_cheap() -> None:
    corpus = "the cat sat on the mat and the dog sat on the cat while the red cat ran " * 5
    target, draft = NgramModel.fit(corpus, 5), NgramModel.fit(corpus, 3)
    start = tuple(target.vocabulary.index(letter) for letter in "the ")
    outcome = speculative(target, draft, start, 400, np.random.default_rng(0), 4)
    assert outcome.speedup(0.02).interval(0.99)[0] > 1.0


def text_of_two_kinds() -> str:
    """Passages that a bigram knows by heart, and passages that take a trigram."""
    random = np.random.default_rng(0)
    following = random.integers(0, 8, (8, 8))
    letters: list[str] = []
    while len(letters) < 20_000:
        letters += "abcdefgh" * int(random.geometric(0.4))
        before, last = random.integers(0, 8, 2)
        for _ in range(random.geometric(0.05)):
            token = following[before, last] if random.random() < 0.8 else random.integers(0, 8)
            letters.append("stuvwxyz"[token])
            before, last = last, token
    return "".join(letters)


def remembering_trigrams(model: NgramModel) -> Callable[[Context], np.ndarray]:
    row = lru_cache(model)
    return lambda context: row(context[-2:])


def test_intervals_hold_where_rounds_of_a_text_depend_on_each_other() -> None:
    text = text_of_two_kinds()
    target = NgramModel.fit(text, 3)
    draft = NgramModel.fit(text, 2, vocabulary=target.vocabulary)
    pair = remembering_trigrams(target), remembering_trigrams(draft)
    runs = [speculative(*pair, (), 500, rng, 5) for rng in np.random.default_rng(1).spawn(100)]
    rounds = sum(run.target_calls for run in runs)
    truth = (rounds + sum(run.accepted for run in runs)) / (1.5 * rounds)
    batches = [run.speedup(0.1) for run in runs]
    single = [
        ratio_of_means([len(r.token_ids) for r in run.rounds], np.full(run.target_calls, 1.5))
        for run in runs
    ]
    covered, taken_for_independent = (
        sum(
            low <= truth <= high
            for low, high in (estimate.interval(0.95) for estimate in estimates)
        )
        for estimates in (batches, single)
    )
    # Of 100 intervals of 95 %.
    assert covered >= 88
    assert taken_for_independent < 80


def test_a_speedup_without_costs_is_the_tokens_a_round() -> None:
    outcome = speculative(MOCK_TARGET, MOCK_DRAFT, (0,), 100, np.random.default_rng(0), 3)
    assert outcome.speedup() == tokens_estimate(outcome)
    for wrong in (-0.1, NAN):
        with pytest.raises(ConfigError, match="cost_ratio"):
            outcome.speedup(wrong)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_tokens": 0}, ConfigError),
        ({"num_tokens": 2.5}, ConfigError),
        ({"length": -1}, ConfigError),
        ({"length": True}, ConfigError),
        ({"length": 1 << 20}, ConfigError),
        ({"target": lambda context: np.array([0.5, 0.4])}, DistributionError),
        ({"target": lambda context: np.array([[0.5, 0.5]])}, DistributionError),
        ({"draft": lambda context: np.array([])}, DistributionError),
        ({"draft": lambda context: np.array([-0.5, 1.5])}, DistributionError),
        ({"draft": TableModel([0.5, 0.25, 0.25])}, DistributionError),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    change: dict[str, Any], error: type[Exception]
) -> None:
    pair = TableModel([0.5, 0.5])
    options = {"target": pair, "draft": pair, "context": (), "num_tokens": 5, **change}
    with pytest.raises(error) as caught:
        speculative(rng=np.random.default_rng(0), **options)
    assert "\n" not in str(caught.value)
