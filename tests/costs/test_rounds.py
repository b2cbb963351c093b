"""Costs of forwards and rounds: their limits, their order, and that they add up to the formulas."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from forerun.costs.forwards import RooflineCosts
from forerun.costs.hardware import HARDWARE, Hardware
from forerun.costs.precision import PRECISIONS
from forerun.costs.rounds import RoundCosts
from forerun.costs.shapes import SHAPES
from forerun.costs.table import CostTable
from forerun.errors import ConfigError
from forerun.simulation.planning import losing_batches
from forerun.theory.formulas import expected_tokens, optimal_length, speedup

# Arithmetic for nothing: whatever runs there waits for its memory.
SLOW_MEMORY = Hardware("slow memory", bandwidth=1e9, fp16=1e21)
SLOW_ARITHMETIC = Hardware("slow arithmetic", bandwidth=1e21, fp16=1e12)

names = st.sampled_from(sorted(SHAPES))
devices = st.sampled_from(sorted(HARDWARE))
batches = st.integers(1, 1024)
contexts = st.integers(0, 131072)
acceptances = st.floats(0.0, 1.0)


def roofline(shape: str = "llama-3.1-8b", hardware: Hardware | None = None, **options: Any) -> Any:
    return RooflineCosts(SHAPES[shape], hardware or HARDWARE["h100"], **options)


class ConstantCosts:
    """The same time for every forward but the first of a round: c(1) = 1, otherwise `checking`."""

    def __init__(self, checking: float) -> None:
        self.checking = checking

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Any:
        return np.where(np.asarray(num_tokens) > 1, self.checking, 1.0)


@given(names, batches, st.integers(1, 32))
def test_where_memory_is_slow_checking_many_costs_as_one(name: str, batch: int, n: int) -> None:
    costs = roofline(name, SLOW_MEMORY)
    if SHAPES[name].num_experts:
        return  # More tokens touch more experts; see below.
    single = costs.seconds(1, batch, 4096)
    assert costs.seconds(n, batch, 4096) == pytest.approx(single)
    # So free drafts gain what the formula says.
    assert RoundCosts.of_models(costs).speedup(0.7, n, batch, 4096) == pytest.approx(
        speedup(0.7, n, 0.0)
    )


@given(names, batches, contexts, st.integers(1, 16), st.floats(0.0, 0.99))
def test_where_arithmetic_is_slow_speculation_loses(
    name: str, batch: int, context: int, length: int, acceptance: float
) -> None:
    costs = roofline(name, SLOW_ARITHMETIC)
    assert costs.seconds(length + 1, batch, context) == pytest.approx(
        (length + 1) * costs.seconds(1, batch, context)
    )
    assert RoundCosts.of_models(costs).speedup(acceptance, length, batch, context) < 1.0


def test_the_numbers_of_one_case_by_hand() -> None:
    """Llama 3.1 8B on an H100: 15.0 GB of weights a forward, 2 * 7.5 GFLOP a token, 131 kB a token
    of cache."""
    costs = roofline()
    layers, attention = costs.traffic.work(2, 4, 1000)
    assert layers.bytes_moved == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=1e-3)
    assert layers.flops == pytest.approx(2 * 8 * 7.505e9, rel=1e-3)
    assert attention.bytes_moved == 4 * 1000 * 2 * 32 * 8 * 128 * 2
    assert attention.flops == 8 * 1000 * 4 * 32 * 32 * 128
    assert layers.intensity == pytest.approx(8.0)
    seconds = layers.bytes_moved / 3.35e12 + attention.bytes_moved / 3.35e12
    assert costs.seconds(2, 4, 1000) == pytest.approx(seconds)
    assert costs.limits.ridge_point == pytest.approx(989.4 / 3.35)
    assert costs.weight_bytes == pytest.approx(16.06e9, rel=1e-3)
    assert costs.traffic.cache_bytes(4, 1000) == attention.bytes_moved


@given(names, devices, st.integers(1, 64), batches, contexts)
def test_more_work_never_takes_less_time(
    name: str, device: str, tokens: int, batch: int, context: int
) -> None:
    costs = roofline(name, HARDWARE[device])
    here = costs.seconds(tokens, batch, context)
    assert 0 < here < np.inf
    for more in ((tokens + 1, batch, context), (tokens, batch + 1, context)):
        assert costs.seconds(*more) >= here
    assert costs.seconds(tokens, batch, context + 1) > here
    assert costs.seconds(2 * tokens, batch, context) <= 2 * here


@given(names, devices, acceptances, acceptances, batches, contexts)
def test_more_acceptance_is_never_slower(
    name: str, device: str, first: float, second: float, batch: int, context: int
) -> None:
    rounds = RoundCosts.of_models(
        roofline(name, HARDWARE[device]), roofline("qwen3-0.6b", HARDWARE[device])
    )
    low, high = sorted((first, second))
    assert rounds.best(low, batch, context)[1] <= rounds.best(high, batch, context)[1] + 1e-12


@given(acceptances, st.integers(0, 20), st.floats(0, 2), st.floats(0.5, 4))
def test_constant_costs_give_the_formula(
    acceptance: float, length: int, ratio: float, checking: float
) -> None:
    result = RoundCosts.of_models(ConstantCosts(checking), ratio).speedup(acceptance, length)
    cost = checking if length else 1.0
    expected = speedup(acceptance, length, ratio, verification_cost=cost)
    assert result == pytest.approx(expected)


@given(acceptances, st.floats(0, 1))
def test_the_best_length_is_the_formulas(acceptance: float, ratio: float) -> None:
    length, gain = RoundCosts.of_models(ConstantCosts(1.0), ratio).best(
        acceptance, lengths=range(1, 41)
    )
    if gain > 1.0:
        assert length == optimal_length(acceptance, ratio, 40)
    assert gain == pytest.approx(max(speedup(acceptance, n, ratio) for n in range(1, 41)))


def test_a_speedup_is_tokens_over_time() -> None:
    rounds, lengths = RoundCosts.of_models(roofline(), roofline("llama-3.2-1b")), np.arange(9)
    seconds = rounds.round_seconds(lengths, 16, 8192)
    assert seconds[0] == rounds.plain_seconds(16, 8192)
    tokens = expected_tokens(0.8, lengths)
    assert tokens / seconds * seconds[0] == pytest.approx(rounds.speedup(0.8, lengths, 16, 8192))


@given(st.floats(0.0, 0.95), st.sampled_from((0, 1024, 32768)), names, devices)
def test_losing_batches_are_those_whose_best_length_loses(
    acceptance: float, context: int, name: str, device: str
) -> None:
    rounds = RoundCosts.of_models(
        roofline(name, HARDWARE[device]), roofline("llama-3.2-1b", HARDWARE[device])
    )
    ranges = losing_batches(rounds, acceptance, context, most=200)
    lost = {batch for low, high in ranges for batch in range(low, high + 1)}
    gains = rounds.best(acceptance, np.arange(1, 201), context)[1]
    assert lost == {batch for batch in range(1, 201) if gains[batch - 1] <= 1.0}
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(ranges))


def test_with_experts_small_batches_lose_first() -> None:
    """Checking more tokens reads more experts, until a plain round reads all of them anyway."""
    rounds = RoundCosts.of_models(roofline("qwen3-30b-a3b"), roofline("qwen3-0.6b"))
    assert rounds.best(0.8, 2, 1024)[1] < rounds.best(0.8, 32, 1024)[1]
    dense = RoundCosts.of_models(roofline("llama-3.1-8b"), roofline("llama-3.2-1b"))
    assert dense.best(0.8, 2, 1024)[1] > dense.best(0.8, 32, 1024)[1]


def test_experts_read_lie_between_those_of_one_token_and_all() -> None:
    costs, shape = roofline("mixtral-8x7b"), SHAPES["mixtral-8x7b"]
    read = costs.traffic.work(np.array([1, 2, 1000]), 1, 0)[0].bytes_moved / 2
    assert read[0] == pytest.approx(shape.active_parameters)
    assert read[0] < read[1] < 2 * read[0]
    assert read[2] == pytest.approx(shape.parameters - 32000 * 4096)


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
def test_smaller_numbers_are_faster_where_memory_is_slow(precision: str) -> None:
    device = Hardware("slow memory", 1e9, 1e21, fp32=1e21, fp8=1e21)
    half = roofline(hardware=device).seconds(1, 1, 0)
    result = roofline(hardware=device, precision=precision).seconds(1, 1, 0)
    assert result / half == pytest.approx(PRECISIONS[precision].bytes_per_value / 2)


def test_devices_together_and_overheads() -> None:
    single, four = roofline(), roofline(num_devices=4, parallel_efficiency=0.5)
    assert single.seconds(1, 1, 1024) == pytest.approx(2 * four.seconds(1, 1, 1024))
    slow_one, slow_four = (
        roofline(hardware=SLOW_ARITHMETIC, num_devices=n, parallel_efficiency=0.5) for n in (1, 4)
    )
    assert slow_one.seconds(1, 1, 1024) == pytest.approx(2 * slow_four.seconds(1, 1, 1024))
    assert four.capacity == 4 * single.capacity
    slow = roofline(overhead=0.5)
    assert slow.seconds(3, 2, 9) == pytest.approx(single.seconds(3, 2, 9) + 0.5)
    assert roofline(hardware=SLOW_MEMORY).capacity is None


def test_a_table_stands_in_for_a_roofline() -> None:
    exact = roofline()
    points = [(n, b, c) for n in (1, 2, 9) for b in (1, 64) for c in (0, 1024, 4096)]
    table = CostTable.from_rows((*point, float(exact.seconds(*point))) for point in points)
    lengths = np.array([1, 8])
    assert RoundCosts.of_models(table, table).speedup(0.7, lengths, 64, 1024) == pytest.approx(
        RoundCosts.of_models(exact, exact).speedup(0.7, lengths, 64, 1024)
    )


def test_a_draft_by_ratio_costs_that_share_of_a_plain_round() -> None:
    rounds = RoundCosts.of_models(roofline(), 0.25)
    assert rounds.drafting(1, 8, 1024) == pytest.approx(0.25 * rounds.plain_seconds(8, 1024))
    assert rounds.round_seconds(0, 8, 1024) == rounds.plain_seconds(8, 1024)


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: roofline(precision="fp8", hardware=HARDWARE["a100"]), "no published peak for fp8"),
    (lambda: roofline(overhead=-1), "overhead"),
    (lambda: roofline(num_devices=0), "num_devices is 0"),
    (lambda: roofline(parallel_efficiency=1.5), "parallel_efficiency"),
    (lambda: roofline().seconds(0, 1, 0), "num_tokens is 0"),
    (lambda: roofline().seconds(1, -4, 0), "batch_size is -4"),
    (lambda: roofline().seconds(1, [1, 0], 0), "batch_size"),
    (lambda: roofline().seconds(1, 1, -1), "context is -1"),
    (lambda: roofline().seconds(1, 1, "much"), "context is 'much'"),
    (lambda: roofline().seconds([1, 2], [1, 2, 3], 0), "do not fit"),
    (lambda: RoundCosts.of_models(roofline(), -0.1), "draft is -0.1"),
    (lambda: RoundCosts.of_models(roofline()).speedup(1.5, 2), "acceptance is 1.5"),
    (lambda: RoundCosts.of_models(roofline()).speedup(0.5, -2), "length is -2"),
    (lambda: RoundCosts.of_models(roofline()).best(0.5, lengths=[0]), "lengths is [0]"),
    (lambda: RoundCosts.of_models(roofline()).best(0.5, lengths=np.arange(0)), "no lengths"),
    (lambda: losing_batches(RoundCosts.of_models(roofline()), 0.5, most=0), "most is 0"),
]


@pytest.mark.parametrize(("wrong", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_input_is_refused(wrong: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        wrong()
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


# Milliseconds of forwards of Llama 3.1 8B in bf16 on an H100, by tokens behind 1,024 others: frozen. By hand,
# one token reads 15.01 GB of weights and 1,025 tokens of 131 kB, at 3,350 GB/s.
MILLISECONDS = {
    1: 4.520497213, 2: 4.520497213, 4: 4.520536339, 8: 4.520614591,
    16: 4.520771095, 32: 4.521084103, 64: 4.521710118,
}  # fmt: skip


def test_forwards_take_what_the_limits_say() -> None:
    costs = roofline()
    limits, traffic = costs.limits, costs.traffic
    found = {n: 1e3 * float(limits.seconds(*traffic.alone(n, 1024))) for n in MILLISECONDS}
    assert found == pytest.approx(MILLISECONDS, rel=1e-9)
    assert limits.ridge_point == pytest.approx(989.4 / 3.35)
