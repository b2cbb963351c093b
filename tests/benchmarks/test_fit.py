"""Costs of rounds, fitted to timed ones."""

from __future__ import annotations

import random

import pytest

from benchmarks.rivals.costs import StageCosts
from benchmarks.rivals.fit import fit_costs
from benchmarks.rivals.records import PromptTiming, RoundTiming
from forerun.costs.table import CostTable
from forerun.errors import ConfigError


def test_costs_are_found_again_in_timed_rounds_of_a_machine_that_slows_down() -> None:
    """Rounds beside plain ones at half the speed count as what they are at the usual one."""
    source = random.Random(0)
    rounds, plain = [], []
    for number in range(400):
        slow = 2.0 if number % 50 < 10 else 1.0
        nodes, context = source.choice([0, 1, 2, 4, 8]), 20.0 + number % 100
        usual = 1e-3 * (3 + 1e-3 * context)
        noise = slow * source.uniform(0.97, 1.03)
        target = (usual + 1e-3 * 0.4 * nodes) * noise
        draft = 1e-3 * (0.2 + 0.5 * nodes) * noise
        first = number == 0
        rounds.append(
            RoundTiming(
                1,
                nodes,
                nodes > 0,
                first,
                context,
                (draft + 1e-4 * context if first else draft) if nodes else 0.0,
                target,
                1e-4 * noise,
                5e-5 * noise,
                usual * slow,
            )
        )
        plain.append((context, usual * slow))
    fitted = fit_costs([PromptTiming("made", "0", 1, 100, tuple(rounds), tuple(plain), 0.2, 0.1)])
    for nodes in (0, 2, 4, 6, 8):
        for context in (30, 100):
            expected = 1e-3 * (3 + 1e-3 * context + 0.4 * nodes)
            found = fitted.verifying(nodes, 1, context).target
            assert found == pytest.approx(expected, rel=0.03)
    assert fitted.drafting(4, 1, 50) == pytest.approx(2.2e-3, rel=0.03)
    assert fitted.plain.seconds(1, 1, 50) == pytest.approx(3.05e-3, rel=0.03)
    assert fitted.prompt(100) == pytest.approx(0.2)
    assert fitted.plain_prompt(100) == pytest.approx(0.1)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_rounds_that_are_cut_to_one_token_do_not_make_short_drafts_cheaper(cut: int) -> None:
    """At the end of an output nothing is drafted, in no time, though it was asked for."""
    rounds = [
        RoundTiming(1, n, True, False, 20.0, 0.5 * n if n else 0.01, 2.0 + 0.3 * n, 0.1, 0.1, 2.0)
        for n, times in ((0, cut), (1, 30), (2, 30), (4, 30))
        for _ in range(times)
    ]
    plain = tuple((20.0 + at, 2.0) for at in range(20))
    fitted = fit_costs([PromptTiming("made", "0", 1, 3, tuple(rounds), plain, 0.1, 0.1)])
    for nodes in (1, 2, 3, 4):
        assert fitted.drafting(nodes, 1, 20) == pytest.approx(0.5 * nodes, rel=0.01)


def test_nothing_timed_is_refused() -> None:
    with pytest.raises(ConfigError, match="no rounds were timed"):
        fit_costs([])


def test_stages_add_up() -> None:
    def table(seconds: float) -> CostTable:
        return CostTable.from_rows((n, 1, 0, seconds * n) for n in (1, 2))

    costs = StageCosts(
        draft=table(1.0), target=table(10.0), plain=table(100.0), verify=table(1000.0),
        host=table(10_000.0), first_draft=0.5, prefill=(2.0, 0.25), plain_prefill=0.5,
    )  # fmt: skip
    three = costs.round(2, 1, 0)
    assert (three.draft, three.target, three.verify, three.host) == (3.0, 30.0, 3000.0, 10_000.0)
    assert costs.round(2, 1, 0, drafts=False).total == three.total - 3.0
    assert (costs.prompt(4), costs.plain_prompt(4)) == (12.0, 6.0)
