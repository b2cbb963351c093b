"""The rows of the table follow from the comparisons."""

from __future__ import annotations

import pytest

from benchmarks.heldout import summarize, table
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.measure.paired import compare
from forerun.params import SamplingParams
from tests.matrix import DRAFT, TARGET


@pytest.fixture(scope="module")
def engine() -> Engine:
    drafter = DraftModelDrafter(DRAFT, 1, DRAFT.max_context)
    return Engine(TARGET, drafter, SpeculativeConfig(policy="fixed"))


def test_rows_count_what_was_compared(engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30)
    comparisons = [compare(engine, [1, token], params, 1) for token in range(5)]
    row = summarize("draft_model", 0.0, comparisons)
    assert row.identical == 5
    assert row.numerics == 0
    ratios = sorted(entry.speedup for entry in comparisons)
    assert row.speedup.value == pytest.approx(ratios[2])
    low, high = row.speedup.low, row.speedup.high
    assert ratios[0] * (1 - 1e-12) <= low <= row.speedup.value <= high <= ratios[-1] * (1 + 1e-12)
    assert 1 <= (row.mean_acceptance_length or 0) <= 5
    assert 0 < row.draft_share + row.target_share < 1
    assert table([row]).count("\n") == 2


def test_sampling_without_a_seed_is_not_compared(engine: Engine) -> None:
    comparisons = [compare(engine, [1, 2], SamplingParams(max_tokens=10), 2)]
    assert comparisons[0].identical is None
    assert summarize("draft_model", 1.0, comparisons).identical is None
    assert len(comparisons[0].pairs) == 2
    assert comparisons[0].spread[0] <= comparisons[0].speedup <= comparisons[0].spread[1]


def test_no_run_drafts_from_the_one_before() -> None:
    """On the same prompt again, what the first run taught would make the others fast."""
    drafter = SuffixDrafter(store_tokens=4000)
    engine = Engine(TARGET, drafter, SpeculativeConfig(policy="fixed", num_speculative_tokens=8))
    comparison = compare(engine, [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=40), 3)
    forwards = [pair.speculative.completion.stats.num_target_forwards for pair in comparison.pairs]
    assert len(set(forwards)) == 1
