"""What the simulated loops count agrees with itself, with the formulas, and holds its intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ConfigError, DistributionError
from forerun.measure.intervals import Estimate, ratio_of_dependent_means, ratio_of_means
from forerun.simulation import simulator
from forerun.simulation.language_models import (
    MOCK_DRAFT,
    MOCK_TARGET,
    Context,
    MockModel,
    NgramModel,
)
from forerun.simulation.rounds import RelativeCost, Simulation
from forerun.simulation.simulator import Speculation, greedy, speculative, standard
from forerun.theory import formulas
from forerun.theory.adaptive import AdaptiveLength
from forerun.theory.rows import acceptance_rate
from tests.helpers.small_models import BlendedModel, GreedyModel, TableModel
from tests.helpers.theory_strategies import RandomRows

NAN = float("nan")


def tokens_estimate(run: Simulation) -> Estimate:
    emitted = [len(entry.token_ids) for entry in run.rounds]
    return ratio_of_dependent_means(emitted, np.ones(len(emitted)))


@pytest.mark.parametrize("rng", [np.random.RandomState(3), np.random.default_rng(3)], ids=str)
def test_independent_rounds_of_a_table_agree_with_the_formulas(rng: Any) -> None:
    p, q = [0.5, 0.3, 0.2], [0.3, 0.2, 0.5]
    speculation = Speculation(4, cost=RelativeCost(0.1))
    outcome = speculative(TableModel(p), TableModel(q), (), 6000, rng, speculation)
    alpha = acceptance_rate(p, q)
    for estimate, wanted in (
        (tokens_estimate(outcome), formulas.expected_tokens(alpha, 4)),
        (outcome.speedup_estimate(), formulas.speedup(alpha, 4, 0.1)),
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


@given(
    st.integers(0, 1000),
    st.integers(1, 5),
    st.integers(0, 6),
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(1, 30),
)
def test_the_counts_fit_together(
    seed: int, vocab_size: int, length: int, branching: list[int], num_tokens: int
) -> None:
    target, draft = RandomRows(vocab_size, seed), RandomRows(vocab_size, seed + 1)
    prices = [1.0 + 0.01 * tokens for tokens in range(500)]
    outcome = speculative(
        target,
        draft,
        (0,),
        num_tokens,
        np.random.default_rng(seed),
        Speculation(length, branching, RelativeCost(0.25, prices.__getitem__)),
    )
    emitted = [token for entry in outcome.rounds for token in entry.token_ids]
    assert outcome.token_ids == tuple(emitted[:num_tokens])
    assert len(outcome.token_ids) == num_tokens
    ends = outcome.recovered + outcome.bonus + outcome.plain
    assert ends == outcome.target_calls == len(outcome.rounds)
    assert outcome.emitted == outcome.accepted + ends == len(emitted)
    assert outcome.draft_calls == length * outcome.target_calls
    assert all(entry.accepted <= entry.depth == length for entry in outcome.rounds)
    assert outcome.cost == pytest.approx(
        0.25 * outcome.draft_calls + sum(prices[entry.drafted + 1] for entry in outcome.rounds)
    )
    assert outcome.speedup == pytest.approx(
        outcome.tokens_per_round * outcome.target_calls / outcome.cost
    )
    assert 0.0 <= outcome.acceptance_rate <= max(outcome.tested_acceptance, 1e-12) <= 1.0
    if not branching and length:
        assert outcome.tokens_per_drafted == pytest.approx(outcome.acceptance_rate + 1 / length)


def test_a_perfect_draft_reaches_the_ceiling() -> None:
    speculation = Speculation(5, cost=RelativeCost(0.1))
    outcome = speculative(MOCK_TARGET, MOCK_TARGET, (0,), 60, np.random.default_rng(0), speculation)
    assert (outcome.recovered, outcome.bonus, outcome.target_calls) == (0, 10, 10)
    assert outcome.speedup == pytest.approx(formulas.speedup(1.0, 5, 0.1))
    assert tokens_estimate(outcome) == Estimate(6.0, 0.0)


def test_a_vocabulary_of_one_token() -> None:
    single = MockModel(vocab_size=1)
    for branching in ((), (3, 2)):
        rng = np.random.default_rng(0)
        outcome = speculative(single, single, (), 10, rng, Speculation(4, branching))
        assert outcome.token_ids == (0,) * 10
        assert outcome.target_calls == 2
        # The only token cannot be drawn twice.
        assert outcome.rounds[0].widths == (1, 1, 1, 1)


def test_siblings_are_distinct_and_end_where_the_draft_does() -> None:
    draft = TableModel([0.5, 0.5, 0.0])
    target = TableModel([0.0, 0.0, 1.0])
    outcome = speculative(target, draft, (), 5, np.random.default_rng(0), Speculation(2, (3, 2)))
    assert {entry.widths for entry in outcome.rounds} == {(2, 4)}
    assert (outcome.recovered, outcome.accepted, outcome.token_ids) == (5, 0, (2,) * 5)


def test_what_is_left_of_a_row_is_computed_for_a_next_sibling_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removed: list[int] = []
    original = simulator._without

    def counted(row: np.ndarray, token: int) -> np.ndarray:
        removed.append(token)
        return original(row, token)

    monkeypatch.setattr(simulator, "_without", counted)
    rng = np.random.default_rng(0)
    chain = speculative(MOCK_TARGET, MOCK_DRAFT, (0,), 20, rng, Speculation(4))
    assert chain.drafted
    assert removed == []
    tree = speculative(MOCK_TARGET, MOCK_DRAFT, (0,), 1, rng, Speculation(2, (3, 2)))
    assert tree.drafted == 3 + 3 * 2
    assert len(removed) == 2 + 3 * 1


@given(st.integers(0, 1000), st.integers(0, 5))
def test_greedy_speculation_is_greedy_decoding(seed: int, length: int) -> None:
    target, draft = RandomRows(4, seed), RandomRows(4, seed + 1)
    outcome = speculative(
        GreedyModel(target),
        GreedyModel(draft),
        (),
        20,
        np.random.default_rng(seed),
        Speculation(length, (2,)),
    )
    assert outcome.token_ids == greedy(target, (), 20).token_ids


def test_no_draft_is_plain_decoding() -> None:
    plain = standard(MOCK_TARGET, (0,), 30, np.random.default_rng(0))
    outcome = speculative(
        MOCK_TARGET, MOCK_DRAFT, (0,), 30, np.random.default_rng(0), Speculation(0)
    )
    assert outcome == plain
    assert (plain.plain, plain.speedup, plain.draft_calls) == (30, 1.0, 0)
    assert plain.tokens_per_drafted == math.inf
    assert plain.acceptance_rate == 0.0


def test_an_adaptive_length_follows_its_rule_and_stays_untouched() -> None:
    rule = AdaptiveLength()
    runs = [
        speculative(
            MOCK_TARGET,
            BlendedModel(MOCK_TARGET, 0.9),
            (0,),
            200,
            np.random.default_rng(1),
            Speculation(rule),
        )
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert rule == AdaptiveLength()
    assert [entry.depth for entry in runs[0].rounds[:5]] == [4] * 5
    for entry, following in itertools.pairwise(runs[0].rounds):
        assert following.depth == rule.observe(entry.depth, entry.accepted)
    assert len({entry.depth for entry in runs[0].rounds}) > 2


def test_a_pair_of_ngram_models_pays_where_the_draft_is_cheap() -> None:
    corpus = "the cat sat on the mat and the dog sat on the cat while the red cat ran " * 5
    target, draft = NgramModel.fit(corpus, 5), NgramModel.fit(corpus, 3)
    outcome = speculative(
        target,
        draft,
        target.encode("the "),
        400,
        np.random.default_rng(0),
        Speculation(4, cost=RelativeCost(0.02)),
    )
    assert outcome.speedup_estimate().interval(0.99)[0] > 1.0


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


@pytest.mark.parametrize(
    "length", [5, pytest.param(AdaptiveLength(), marks=pytest.mark.slow)], ids=["fixed", "adaptive"]
)
def test_intervals_hold_where_rounds_of_a_text_depend_on_each_other(
    length: int | AdaptiveLength,
) -> None:
    text = text_of_two_kinds()
    target = NgramModel.fit(text, 3)
    draft = NgramModel.fit(text, 2, vocabulary=target.vocabulary)
    pair = remembering_trigrams(target), remembering_trigrams(draft)
    runs = [
        speculative(*pair, (), 500, rng, Speculation(length, cost=RelativeCost(0.1)))
        for rng in np.random.default_rng(1).spawn(100)
    ]
    truth = sum(run.emitted for run in runs) / sum(run.cost for run in runs)
    batches = [run.speedup_estimate() for run in runs]
    single = [
        ratio_of_means([len(r.token_ids) for r in run.rounds], [r.cost for r in run.rounds])
        for run in runs
    ]
    assert [estimate.value for estimate in batches] == pytest.approx([run.speedup for run in runs])
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


def test_a_speedup_at_another_cost_ratio() -> None:
    free, dear = (
        speculative(
            *(MOCK_TARGET, MOCK_DRAFT, (0,), 100, np.random.default_rng(0)),
            Speculation(3, cost=RelativeCost(ratio)),
        )
        for ratio in (0.0, 0.4)
    )
    assert free.speedup_estimate(0.4) == dear.speedup_estimate()
    assert dear.speedup_estimate(0) == free.speedup_estimate() == tokens_estimate(free)
    with pytest.raises(ConfigError, match="cost_ratio"):
        free.speedup_estimate(-0.1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_tokens": 0}, ConfigError),
        ({"num_tokens": 2.5}, ConfigError),
        ({"length": 0, "cost": RelativeCost(verification_cost=lambda _: 0.0)}, ConfigError),
        ({"length": 0, "cost": RelativeCost(verification_cost=lambda _: NAN)}, ConfigError),
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
    how = {name: options.pop(name) for name in ("length", "cost") if name in options}
    with pytest.raises(error) as caught:
        speculative(rng=np.random.default_rng(0), speculation=Speculation(**how), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Speculation(-1),
        lambda: Speculation(True),
        lambda: Speculation(branching=(0,)),
        lambda: Speculation(2, branching=(100, 100)),
        lambda: Speculation(64, branching=(64, 2)),
        lambda: Speculation(AdaptiveLength(), branching=(600,)),
        lambda: RelativeCost(-0.1),
        lambda: RelativeCost(NAN),
    ],
)
def test_speculation_that_is_impossible_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        make()
