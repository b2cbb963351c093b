"""The benchmark of work on which speculation should lose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.never_a_loss import LENGTHS, Cell, Ratio, measure, ratio_of, table_row
from forerun.core import Plan, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.policies.base import BasePolicy
from tests.matrix import DRAFT, TARGET


class Told(BasePolicy):
    """Keeps what it is told, in order."""

    name = "told"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        self.calls.append("plan")
        return [Plan(2)] * len(requests)

    def forget(self) -> None:
        self.calls.append("forget")


def test_the_first_pass_stands_apart() -> None:
    """Two batches, a cold pass and three later ones, of which one was disturbed."""
    plain = [[2.0, 4.0]] * 4
    auto = [[4.0, 8.0], [1.0, 2.0], [1.0, 2.0], [9.0, 2.0]]
    ratio = ratio_of([plain, plain, auto, *([[n * 1.0, 2.0]] * 4 for n in LENGTHS)])
    assert (ratio.first, ratio.ratio, ratio.control) == (0.5, 2.0, 1.0)
    assert (ratio.least, ratio.most) == (6 / 11, 2.0)
    assert ratio.fixed == {n: 6 / (n + 2) for n in LENGTHS}
    assert (ratio.best_length, ratio.best_fixed, ratio.share) == (1, 2.0, 1.0)


def test_a_pass_is_compared_with_plain_decoding_of_that_pass() -> None:
    """The machine becomes slower; only in the second of three passes is auto faster than plain."""
    plain, auto = [[1.0], [1.0], [2.0], [4.0]], [[1.0], [1.0], [1.0], [4.0]]
    assert ratio_of([plain, plain, auto, *[plain] * len(LENGTHS)]).ratio == 1.0


def test_plain_decoding_is_a_fixed_setting() -> None:
    ratio = Ratio(0.9, 0.97, 0.9, 1.0, 1.0, {1: 0.8, 2: 1.0})
    assert (ratio.best_length, ratio.best_fixed, ratio.share) == (0, 1.0, 0.97)


def test_rows_say_what_was_best() -> None:
    row = {"model": "zoo", "cell": "8 tokens", "first": 1.0, "ratio": 1.2, "least": 1.1}
    row |= {"most": 1.3, "control": 1.0, "decisions": "9 rounds", "share": 0.8}
    fixed = table_row({**row, "best_length": 4, "best_fixed": 1.5})
    assert fixed == (
        "| zoo | 8 tokens | 1.00 | 1.200 (1.10–1.30) | 1.50 (4 tokens) | 80.0% | 1.000 | 9 rounds |"
    )
    assert "| 1.00 (plain) |" in table_row({**row, "best_length": 0, "best_fixed": 1.0})


@pytest.mark.parametrize(("at_once", "batch_size"), [(1, 1), (4, 2)])
def test_the_warm_up_teaches_nothing(at_once: int, batch_size: int) -> None:
    policy = Told()
    engines = [Engine(TARGET, max_batch_size=batch_size) for _ in range(2)]
    for own, length in [(policy, None), *((None, n) for n in LENGTHS)]:
        config = SpeculativeConfig(policy="fixed", num_speculative_tokens=length)
        drafter = DraftModelDrafter(DRAFT, batch_size, DRAFT.max_context)
        engines.append(Engine(TARGET, drafter, config, policy=own, max_batch_size=batch_size))
    prompts = [[token, 2] for token in range(4)]
    cell = Cell("tiny", prompts, max_tokens=4, batch_size=batch_size, at_once=at_once)
    ratio = measure(cell, engines, 1)
    assert set(ratio.fixed) == set(LENGTHS)
    assert policy.calls[0] == "forget"
    assert policy.calls.count("forget") == 1
    assert policy.calls.count("plan") >= 8 // at_once
