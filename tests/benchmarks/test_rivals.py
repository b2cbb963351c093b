"""Rivals follow the rules of the projects that they stand for, and none beats hindsight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rivals.__main__ import main, over_drafters
from benchmarks.rivals.budgets import FULL_ROUNDS, AdaptiveVerification, Algorithm1
from benchmarks.rivals.costs import Seconds
from benchmarks.rivals.engine_policies import EnginePolicy
from benchmarks.rivals.lengths import Autotune, Goodput, MovingAverage
from benchmarks.rivals.records import PromptTiming, Records, RoundTiming
from benchmarks.rivals.regret import Workload, of_all, regrets, rivals, scaled, seconds_of
from benchmarks.rivals.replay import Offer, Outcome, View, replay
from benchmarks.rivals.rounds import DraftChoice
from forerun.policies.adaptive import AdaptivePolicy
from forerun.theory.adaptive import AdaptiveLength
from tests.helpers.recorded import costs, output, recorded

COSTS = {"cheap": costs(draft=0.02), "good": costs(draft=0.2)}
A_SECOND = Seconds(0.0, 1.0, 0.0, 0.0)


def view(request: int = 0) -> View:
    return View(request, 3, 0, 100, {}, None)  # type: ignore[arg-type]  # nobody reads the text


def outcome(drafted: int, accepted: int, probs: tuple[float, ...] = ()) -> Outcome:
    offer = Offer(view(), DraftChoice("good", drafted), drafted, probs)
    return Outcome(offer, drafted, drafted, accepted, accepted + 1)


def workload() -> Workload:
    return Workload("made", [recorded(seed, 60) for seed in range(4)], COSTS)


def test_a_slower_machine_takes_longer_in_every_stage() -> None:
    usual, slower = COSTS["good"], scaled(COSTS["good"], 3.0)
    for nodes in (0, 4):
        assert slower.round(nodes, 1, 0).total == pytest.approx(3 * usual.round(nodes, 1, 0).total)
    assert slower.plain_seconds(1, 0) == 3 * usual.plain_seconds(1, 0)
    assert slower.prompt(4) == pytest.approx(3 * usual.prompt(4))


def test_no_rival_takes_less_than_hindsight() -> None:
    made = workload()
    best = made.best
    for candidate in made.costs:
        for policy in rivals(made, candidate):
            assert seconds_of(made, policy, candidate) >= best - 1e-9, policy.name
    assert seconds_of(made, of_all(made), *made.costs) >= best - 1e-9


def test_the_moving_average_steps_down_and_up_as_sglangs_does() -> None:
    """From 5 of (1, 3, 5, 7): nothing for ten rounds, then every fifth round by thresholds at half."""
    policy = MovingAverage("good", 7)

    def steps(accepted: int, rounds: int) -> list[int]:
        taken = []
        for _ in range(rounds):
            [choice] = policy.choose([view()])
            taken.append(choice.num_tokens)
            policy.observe([outcome(choice.num_tokens, min(accepted, choice.num_tokens))], A_SECOND)
        return taken

    assert steps(0, 15) == [5] * 15
    # 4 x 0.8 ** 15 is 0.14, below 3 - 0.5 - 0.25 and not above 1 - 0.5 - 0.25.
    assert steps(9, 1) == [1]
    assert steps(9, 40)[-1] == 7
    batch = [view(number) for number in range(64)]
    assert {choice.num_tokens for choice in policy.choose(batch)} == {0}


def test_goodput_drafts_far_where_tokens_are_accepted_and_not_at_all_where_none_are() -> None:
    policy = Goodput("good", 8, costs(draft=0.05, verify=0.05))
    for _ in range(100):
        policy.observe([outcome(8, 8)], A_SECOND)
    assert policy.choose([view()])[0].num_tokens == 8
    for _ in range(200):
        policy.observe([outcome(8, 0)], A_SECOND)
    assert policy.choose([view()])[0] == DraftChoice(None, 0)


def test_the_bandit_settles_on_the_length_with_most_tokens_a_second() -> None:
    policy = Autotune("good", 8)
    taken = []
    for _ in range(2000):
        [choice] = policy.choose([view()])
        taken.append(choice.num_tokens)
        seconds = Seconds(0.0, 1.0 if choice.num_tokens == 5 else 2.0, 0.0, 0.0)
        policy.observe([outcome(choice.num_tokens, 1)], seconds)
    assert max(set(taken[1000:]), key=taken[1000:].count) == 5


@pytest.mark.parametrize("kind", [AdaptiveVerification, Algorithm1])
def test_a_budget_verifies_what_pays_and_the_most_probable_of_it(
    kind: type[AdaptiveVerification],
) -> None:
    """Confident tokens are accepted and others are not: once that is learned, the others are left out."""
    policy = kind("good", 6, costs(draft=0.01, verify=0.3))
    confident, doubtful = (0.99,) * 3 + (0.02,) * 3, (0.02,) * 6
    for _ in range(FULL_ROUNDS // 2):
        assert policy.keep([outcome(6, 0).offer]) == [6]
        policy.observe([outcome(6, 3, confident)], A_SECOND)
        policy.observe([outcome(6, 0, doubtful)], A_SECOND)
    offers = [
        Offer(view(number), DraftChoice("good", 6), 6, probs)
        for number, probs in enumerate((confident, doubtful))
    ]
    for _ in range(4):
        kept = policy.keep(offers)
    assert kept == [3, 0]


def test_the_engines_own_policy_decides_as_it_does_there() -> None:
    """Lengths of the adaptive policy are those of its rule, fed with the recorded rounds."""
    text = {"good": output("good", 200, longest=10)}
    seen: list[int] = []

    class Watching(EnginePolicy):
        def observe(self, outcomes: list[Outcome], seconds: Seconds) -> None:  # type: ignore[override]
            for one in outcomes:
                if one.offer.choice.candidate is not None:
                    assert one.offer.choice.num_tokens == rule.length
                if one.verified:
                    rule.observe(one.verified, one.accepted)
                seen.append(one.emitted)
            super().observe(outcomes, seconds)

    rule = AdaptiveLength(4)
    replay([text], COSTS, Watching(AdaptivePolicy(4), "good"))
    assert sum(seen) == 200


def test_the_table_names_every_policy_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for number in range(2):
        file = tmp_path / f"workload{number}.jsonl"
        records = Records.open(file, {})
        for name in ("cheap", "good"):
            records.add(output(name, 30, number, text=number))
            rounds = [
                RoundTiming(1, n, n > 0, False, 5.0 + n, 0.1 * n, 1 + 0.1 * n, 0.1, 0.1, 1.0)
                for n in (0, 1, 2, 4, 6)
                for _ in range(4)
            ]
            plain = tuple((float(at), 1.0) for at in range(20))
            records.add(PromptTiming(name, "0", 1, 3, tuple(rounds), plain, 0.1, 0.1))
        files.append(str(file))
    main([*files, "--orders", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| policy | workload0 | workload1 | mean |"
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]]
    assert len(names) == len(set(names))
    assert {"plain", "auto", "auto, all drafters", "adaptive", "fixed, 3"} <= set(names)
    main([*files, "--orders", "2", "--json"])
    lost = json.loads(capsys.readouterr().out)
    drafters = {"no drafter", "cheap", "good", "all drafters"}
    assert all(by_drafter.keys() == drafters for by_drafter in lost.values())
    shares = [share for one in lost.values() for own in one.values() for share in own.values()]
    assert min(shares) >= -1e-9
    main([*files, "--orders", "2", "--by-drafter"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[: len(lines)] == lines
    assert drafters <= set(shown)


def test_a_row_is_the_mean_over_the_drafters_that_all_have_it() -> None:
    lost = {
        "no drafter": {"plain": 0.5},
        "ngram": {"auto": 0.1, "8": 0.2},
        "eagle3": {"auto": 0.3},
        "all drafters": {"auto": 0.05},
    }
    assert over_drafters(lost) == {
        "plain": 0.5,
        "auto": pytest.approx(0.2),
        "auto, all drafters": 0.05,
    }


def test_orders_have_the_same_texts_and_the_first_is_the_recorded_one() -> None:
    made = workload()
    assert made.in_order(0).texts == made.texts
    first, second = (made.in_order(order).texts for order in (1, 2))
    assert first != second
    for texts in (first, second):
        assert sorted(map(str, texts)) == sorted(map(str, made.texts))
    # What does not learn takes the same time in any order.
    lost = regrets(made, orders=3)
    once = regrets(made)
    assert lost["good"]["3"] == pytest.approx(once["good"]["3"])
    assert lost["good"]["auto"] != once["good"]["auto"]
