"""The simulated loops are exact: every branch of them, enumerated."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from forerun.simulation import simulator
from forerun.simulation.simulator import Context, speculative
from forerun.theory import acceptance
from tests.helpers.small_models import prefix_tables
from tests.helpers.theory_strategies import RandomRows

Distribution = dict[tuple[int, ...], float]


class Branches:
    """A random source that takes every possible branch, one per run."""

    def __init__(self) -> None:
        self.script: list[int] = []

    def runs(self, run: Callable[[Branches], Any]) -> Iterator[tuple[float, Any]]:
        """Each outcome of `run` with its probability."""
        while True:
            self.at, self.probability, self.widths = 0, 1.0, list[int]()
            outcome = run(self)
            yield self.probability, outcome
            self.script = self.script[: self.at]
            while self.script and self.script[-1] + 1 == self.widths[len(self.script) - 1]:
                self.script.pop()
            if not self.script:
                return
            self.script[-1] += 1

    def take(self, probabilities: list[float]) -> int:
        possible = [index for index, value in enumerate(probabilities) if value > 0]
        if self.at == len(self.script):
            self.script.append(0)
        self.widths.append(len(possible))
        taken = possible[self.script[self.at]]
        self.at += 1
        self.probability *= probabilities[taken]
        return taken

    def random(self) -> Uniform:
        return Uniform(self)

    def choice(self, a: int, /, *, p: np.ndarray) -> int:
        assert a == len(p)
        assert math.isclose(p.sum(), 1.0)
        return self.take(p.tolist())


class Uniform:
    """A number that is below a threshold with that probability."""

    def __init__(self, branches: Branches) -> None:
        self.branches = branches

    def __lt__(self, threshold: float) -> bool:
        return self.branches.take([threshold, 1.0 - threshold]) == 0


def distribution_of(model: Any, context: Context, length: int) -> Distribution:
    """A model's own distribution over sequences of this length."""
    distribution = {}
    for ids in itertools.product(range(model.vocab_size), repeat=length):
        steps = [model(context + ids[:place])[token] for place, token in enumerate(ids)]
        distribution[ids] = float(np.prod(steps))
    return distribution


def round_distribution(target: Any, draft: Any, length: int) -> Distribution:
    """One enumerated round, completed to length + 1 tokens by the target itself."""
    distribution: Distribution = defaultdict(float)
    for probability, outcome in Branches().runs(
        lambda source: speculative(target, draft, (1,), 1, source, length)
    ):
        tokens = outcome.rounds[0].token_ids
        for rest, share in distribution_of(target, (1, *tokens), length + 1 - len(tokens)).items():
            distribution[tokens + rest] += probability * share
    return distribution


def deviation(actual: Distribution, expected: Distribution) -> float:
    both = actual.keys() | expected
    return max(abs(actual.get(ids, 0.0) - expected.get(ids, 0.0)) for ids in both)


@pytest.mark.parametrize(("vocab_size", "length"), [(1, 3), (2, 3), (3, 2), (3, 0), (4, 1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_round_follows_the_target(vocab_size: int, length: int, seed: int) -> None:
    target, draft = RandomRows(vocab_size, seed), RandomRows(vocab_size, seed + 10)
    distribution = round_distribution(target, draft, length)
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-12)
    assert deviation(distribution, distribution_of(target, (1,), length + 1)) < 1e-12


def test_a_recovered_token_from_the_target_row_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "corrected_distribution", lambda row, drawn: row)
    target, draft = RandomRows(3, 0), RandomRows(3, 10)
    distribution = round_distribution(target, draft, 2)
    assert deviation(distribution, distribution_of(target, (1,), 3)) > 1e-3


def test_whole_runs_follow_the_target() -> None:
    target, draft = RandomRows(2, 4), RandomRows(2, 5)
    distribution: Distribution = defaultdict(float)
    for probability, outcome in Branches().runs(
        lambda source: speculative(target, draft, (), 3, source, 2)
    ):
        distribution[outcome.token_ids] += probability
    assert deviation(distribution, distribution_of(target, (), 3)) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_enumerated_chains_accept_what_the_formula_says(seed: int) -> None:
    target, draft = RandomRows(3, seed), RandomRows(3, seed + 20)
    tokens = sum(
        probability * len(outcome.rounds[0].token_ids)
        for probability, outcome in Branches().runs(
            lambda source: speculative(target, draft, (), 1, source, 3)
        )
    )
    tables = prefix_tables(target, (), 3), prefix_tables(draft, (), 3)
    assert tokens == pytest.approx(1.0 + acceptance.token_rule_survival(*tables).sum(), abs=1e-12)
