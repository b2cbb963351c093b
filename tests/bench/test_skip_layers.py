"""The search finds the layer that says nothing, and its figures are those of the engine."""

from __future__ import annotations

import pytest

from forerun.bench import skip_layers
from forerun.bench.skip_layers import Bench, Choice, exits, final, listing
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.testing.layered import LayeredToyModel

IDLE = 2


@pytest.fixture(scope="module")
def bench() -> Bench:
    target = LayeredToyModel(order=4)
    target.tables[IDLE] = 0.0
    engine = Engine(target)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    texts = [[1, 2, 3], [4], [5, 6]]
    outputs = [one.token_ids for one in engine.generate(texts, params)]
    return Bench(engine, texts, outputs, params, 3)


def test_a_layer_that_says_nothing_costs_no_acceptance(bench: Bench) -> None:
    found = bench.measure(Choice("idle", (IDLE,)))
    assert found.acceptance == 1.0
    assert found.identical == (3, 3)
    other = bench.measure(Choice("busy", (1,)))
    assert other.acceptance < 1.0
    assert other.identical == (3, 3)


def test_the_search_goes_on_from_the_best_set(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With equal costs for all sets acceptance alone decides, and every set is seen once."""
    monkeypatch.setattr(skip_layers, "time_round", lambda *_: (1.0, 0.1, 1.0))
    found = bench.search(say=False)
    sets = [one.skip_layers for one in found]
    assert len(set(sets)) == len(sets) == 3 + 2 + 1
    assert found[0].skip_layers == (IDLE,)
    assert found[0].speedup == pytest.approx(11 / 2)
    assert all(IDLE in one for one in sets if len(one) > 1)
    assert [one.speedup for one in found] == sorted((one.speedup for one in found), reverse=True)
    assert listing(found).count("\n") == 7


def test_costs_are_ratios(bench: Bench) -> None:
    target = bench.engine.target
    forward, draft, verification = skip_layers.time_round(
        target, Choice("exit", (1, 2, 3)), [1, 2, 3], 2
    )
    assert min(forward, draft, verification) > 0


def test_exits_and_the_comparison(bench: Bench) -> None:
    choices = exits(bench.engine, (1, 3))
    assert [choice.skip_layers for choice in choices] == [(1, 2, 3), (3,)]
    rows = final(bench, [(choices[0], 2)], [[1, 2]])
    assert rows[0].method == "exit 1, 2 tokens"
    assert rows[0].identical == 1
