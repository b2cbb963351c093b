"""The search finds the layer without effect, and its figures are those of the engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import skip_layers
from benchmarks.skip_layers import Bench, Choice, acceptance_from, exits, final, listing
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.theory.formulas import expected_tokens
from tests.helpers.layered import LayeredToyModel

IDLE = 2


@pytest.fixture(scope="module")
def bench() -> Bench:
    target = LayeredToyModel(order=4)
    target.tables[IDLE] = 0.0
    engine = Engine(target)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    texts = [[1, 2, 3], [4], [5, 6]]
    outputs = [completion.token_ids for completion in engine.generate(texts, params)]
    return Bench(engine, texts, outputs, params, 3)


def test_skipping_a_layer_without_effect_costs_no_acceptance(bench: Bench) -> None:
    idle = bench.measure(Choice("idle", (IDLE,)))
    assert idle.acceptance == 1.0
    assert idle.identical == (3, 3)
    busy = bench.measure(Choice("busy", (1,)))
    assert busy.acceptance < 1.0
    assert busy.identical == (3, 3)


@given(st.floats(0.0, 1.0), st.integers(1, 40))
def test_acceptance_comes_back_from_tokens(acceptance: float, length: int) -> None:
    tokens = float(expected_tokens(acceptance, length))
    inverted = acceptance_from(tokens, length)
    assert inverted == pytest.approx(acceptance, abs=1e-9)
    assert expected_tokens(inverted, length) == pytest.approx(tokens, rel=1e-9)


def test_the_search_goes_on_from_the_best_set(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With equal costs for all sets acceptance alone decides, and every set is seen once."""
    monkeypatch.setattr(skip_layers, "time_round", lambda *_: (1.0, 0.1, 1.0))
    measured = bench.search(say=False)
    sets = [row.skip_layers for row in measured]
    assert len(set(sets)) == len(sets) == 3 + 2 + 1
    assert measured[0].skip_layers == (IDLE,)
    assert measured[0].speedup == pytest.approx(11 / 2)
    assert all(IDLE in layers for layers in sets if len(layers) > 1)
    speedups = [row.speedup for row in measured]
    assert speedups == sorted(speedups, reverse=True)
    assert listing(measured).count("\n") == 7


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
