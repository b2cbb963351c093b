"""The simulated loops are exact: every branch of them, enumerated."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from theory_strategies import RandomRows

from forerun.theory import chains, simulator, trees
from forerun.theory.adaptive import AdaptiveLength
from forerun.theory.language_models import (
    Context,
    TableModel,
    prefix_tables,
)
from forerun.theory.simulator import speculative

Law = dict[tuple[int, ...], float]


class Branches:
    """A random source that takes, run after run, every branch that there is."""

    def __init__(self) -> None:
        self.script: list[int] = []

    def runs(self, run: Callable[[Branches], Any]) -> Iterator[tuple[float, Any]]:
        """Each outcome of `run` with its probability."""
        while True:
            self.at, self.probability, self.widths = 0, 1.0, list[int]()
            found = run(self)
            yield self.probability, found
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
    """What is below a threshold as often as it says."""

    def __init__(self, branches: Branches) -> None:
        self.branches = branches

    def __lt__(self, threshold: float) -> bool:
        return self.branches.take([threshold, 1.0 - threshold]) == 0


def law_of(model: Any, context: Context, length: int) -> Law:
    """A model's own law over the sequences of this length."""
    law = {}
    for ids in itertools.product(range(model.vocab_size), repeat=length):
        steps = [model(context + ids[:place])[token] for place, token in enumerate(ids)]
        law[ids] = float(np.prod(steps))
    return law


def round_law(target: Any, draft: Any, options: dict[str, Any]) -> Law:
    """One enumerated round, completed to length + 1 tokens by the target itself."""
    length = options["length"] + 1
    law: Law = defaultdict(float)
    for probability, found in Branches().runs(
        lambda source: speculative(target, draft, (1,), 1, source, **options)
    ):
        tokens = found.rounds[0].token_ids
        for rest, share in law_of(target, (1, *tokens), length - len(tokens)).items():
            law[tokens + rest] += probability * share
    return law


def deviation(found: Law, wanted: Law) -> float:
    return max(abs(found.get(ids, 0.0) - wanted.get(ids, 0.0)) for ids in found.keys() | wanted)


SHAPES: list[tuple[int, dict[str, Any]]] = [
    (1, {"length": 3}),
    (2, {"length": 3}),
    (3, {"length": 2}),
    (3, {"length": 0}),
    (3, {"length": 2, "branching": (2,)}),
    (3, {"length": 2, "branching": (2, 2)}),
    (4, {"length": 1, "branching": (4,)}),
    (2, {"length": 2, "branching": (1, 3)}),
]


@pytest.mark.parametrize(("vocab_size", "options"), SHAPES, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_round_follows_the_target(vocab_size: int, options: dict[str, Any], seed: int) -> None:
    target, draft = RandomRows(vocab_size, seed), RandomRows(vocab_size, seed + 10)
    found = round_law(target, draft, options)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    assert deviation(found, law_of(target, (1,), options["length"] + 1)) < 1e-12


@pytest.mark.parametrize(("vocab_size", "options"), SHAPES[2:6:3], ids=str)
def test_a_recovered_token_from_the_target_row_would_show(
    vocab_size: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "_residual", lambda row, drawn: row)
    target, draft = RandomRows(vocab_size, 0), RandomRows(vocab_size, 10)
    found = round_law(target, draft, options)
    assert deviation(found, law_of(target, (1,), options["length"] + 1)) > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"length": 2},
        {"length": AdaptiveLength(1, shortest=1, window=1)},
        {"length": 1, "branching": (2,)},
    ],
    ids=str,
)
def test_whole_runs_follow_the_target(options: dict[str, Any]) -> None:
    target, draft = RandomRows(2, 4), RandomRows(2, 5)
    law: Law = defaultdict(float)
    for probability, found in Branches().runs(
        lambda source: speculative(target, draft, (), 3, source, **options)
    ):
        law[found.token_ids] += probability
    assert deviation(law, law_of(target, (), 3)) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_enumerated_chains_accept_what_the_formula_says(seed: int) -> None:
    target, draft = RandomRows(3, seed), RandomRows(3, seed + 20)
    tokens = sum(
        probability * len(found.rounds[0].token_ids)
        for probability, found in Branches().runs(
            lambda source: speculative(target, draft, (), 1, source, length=3)
        )
    )
    tables = prefix_tables(target, (), 3), prefix_tables(draft, (), 3)
    assert tokens == pytest.approx(chains.expected_tokens_token_rule(*tables), abs=1e-12)


@pytest.mark.parametrize("branching", [(2, 2), (3, 1), (1, 2)])
def test_enumerated_trees_accept_what_the_formula_says(branching: tuple[int, ...]) -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    tokens = sum(
        probability * len(found.rounds[0].token_ids)
        for probability, found in Branches().runs(
            lambda source: speculative(
                TableModel(p), TableModel(q), (), 1, source, length=2, branching=branching
            )
        )
    )
    assert tokens == pytest.approx(trees.expected_tokens_branching(p, q, branching), abs=1e-12)
