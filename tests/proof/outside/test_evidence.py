"""Evidence rarely accuses a fair sampler, and grows where tokens lean as it says that it sees."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.proof.outside.evidence import (
    AnswerScores,
    Evidence,
    deviation_seen,
    positions_of,
    tokens_needed,
)
from forerun.proof.outside.two_sample import TESTS, SampledAnswer, permutation_tests
from forerun.theory.goodness_of_fit import mean_total_variation

VOCAB, LENGTH = 8, 10


def evidence_of(seed: int, answers: int, strength: float = 0.0) -> tuple[Evidence, float]:
    """Evidence of answers drawn at another temperature than their rows, and the total variation."""
    random, evidence, distances = np.random.default_rng(seed), Evidence(), []
    for _ in range(answers):
        rows = random.dirichlet(np.ones(VOCAB), LENGTH)
        drawn = rows ** (1.0 + strength)
        drawn /= drawn.sum(1, keepdims=True)
        distances.append(mean_total_variation(rows, drawn))
        chosen = np.array([random.choice(VOCAB, p=row) for row in drawn])
        scores = AnswerScores(random, evidence.memory, 0)
        scores.add(rows, chosen)
        evidence.add(scores.scores())
    return evidence, float(np.mean(distances))


def test_a_fair_sampler_is_rarely_accused_however_often_one_looks() -> None:
    """By Ville's inequality with probability 1/5 at most at any time; 22 of 60 have probability 0.002."""
    runs = [evidence_of(seed, 30)[0] for seed in range(60)]
    assert sum(run.alarms(0.2) for run in runs) <= 21
    assert all(run.peak >= run.value for run in runs)


@pytest.mark.slow
def test_a_deviation_is_seen_after_the_tokens_that_were_stated() -> None:
    _, deviation = evidence_of(0, 200, strength=0.5)
    answers = math.ceil(tokens_needed(deviation, 0.01) / LENGTH)
    seen = [evidence_of(seed, answers, strength=0.5)[0].alarms(0.01) for seed in range(20)]
    # 20 draws of 0.9 are 14 at least but in 1 of 500 cases.
    assert sum(seen) >= 14


def test_rounds_begin_behind_tokens_that_are_not_accepted() -> None:
    origins = ("plain", "accepted", "accepted", "bonus", "recovered", "accepted", "recovered")
    first, bonus = positions_of(origins, 7)
    assert first.tolist() == [1, 1, 0, 0, 1, 1, 0]
    assert bonus.tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert not positions_of((), 7).any()
    assert not positions_of(origins[:3], 7).any()


def bonus_evidence(tells: bool) -> Evidence:
    """Evidence of rounds of four tokens, of which only the bonus token leans."""
    random, evidence = np.random.default_rng(5), Evidence()
    origins = ("accepted", "accepted", "accepted", "bonus")
    for _ in range(60):
        rows = random.dirichlet(np.ones(VOCAB), 4)
        drawn = rows ** np.array([[1.0], [1.0], [1.0], [4.0]])
        drawn /= drawn.sum(1, keepdims=True)
        chosen = np.array([random.choice(VOCAB, p=row) for row in drawn])
        scores = AnswerScores(random, evidence.memory, 0, origins if tells else ())
        scores.add(rows, chosen)
        evidence.add(scores.scores())
    return evidence


def test_a_deviation_of_bonus_tokens_alone_shows_sooner_where_they_are_told() -> None:
    told, hidden = bonus_evidence(tells=True), bonus_evidence(tells=False)
    assert told.strongest.startswith("bonus token")
    assert told.peak > hidden.peak + 2.0


def test_four_times_as_many_tokens_show_half_the_deviation() -> None:
    assert deviation_seen(4 * 5000, 0.01) == pytest.approx(deviation_seen(5000, 0.01) / 2)
    assert deviation_seen(tokens_needed(0.02, 0.01), 0.01) == pytest.approx(0.02, rel=0.01)


def answers_of(seed: int, lean: float) -> list[SampledAnswer]:
    random = np.random.default_rng(seed)
    row = np.array([0.4 + lean, 0.3 - lean, 0.2, 0.1])
    drawn = random.choice(4, (60, 5), p=row)
    return [SampledAnswer(tuple(map(int, one)), float(np.log(row[one]).mean())) for one in drawn]


def test_on_against_off_sees_other_tokens_and_not_the_same() -> None:
    fair = [
        permutation_tests([(answers_of(s, 0.0), answers_of(s + 100, 0.0))], s) for s in range(10)
    ]
    # Three of ten at level 0.05 have probability 0.01.
    assert sum(min(p.values()) < 0.05 for p in fair) <= 3
    found = permutation_tests([(answers_of(1, 0.25), answers_of(2, 0.0))], 0)
    assert set(found) == set(TESTS)
    assert found["next tokens"] < 0.01
