"""Policy auto from an empty home folder: what the first requests gain and lose, on simulated time.

What is left on the table is a loss too: all is compared with the best fixed length, found on the same rounds.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from forerun.core import PlainReason, Request, RoundTimes
from forerun.costs.table import CostTable
from forerun.drafters.ngram import NgramDrafter
from forerun.params import SamplingParams
from forerun.policies import memory as memory_module
from forerun.policies.auto import AutoOptions, AutoPolicy
from forerun.policies.budget import LONGEST_PAUSE, Trials
from forerun.policies.calibration import calibrate
from forerun.policies.fixed import FixedPolicy
from forerun.policies.memory import SAVE_SECONDS, recall
from forerun.testing import ToyModel
from tests.helpers.covering import covering
from tests.helpers.simulated_rounds import VOCABULARY, SimulatedDrafter, World

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12)
TOKENS, SEEDS = 128, 12
# Shares of a plain round, as measured: the zoo's draft, a draft of a larger vocabulary, a dear one.
CHEAP, USUAL, DEAR = 0.05, 0.15, 0.6


def rising(slope: float) -> Callable[[int], float]:
    return lambda tokens: 1.0 + slope * (tokens - 1)


def world(rate: float, cost: float, seed: int = 0, slope: float = 0.05) -> World:
    """Drafts of one quality, with noisy times."""
    drafter = SimulatedDrafter(rate=lambda _: rate, token_seconds=cost, waiting=2)
    return World(drafter, rising(slope), seed, noise=0.05)


def table_of(where: World) -> CostTable:
    rows = [(n, 1, 0, where.forward(n)) for n in (1, 2, 3, 4, 5, 6, 8, 10, 13, 17)]
    return CostTable.from_rows(rows)


def new_policy(where: World, learned: Any = None, rehearsed: bool = True) -> AutoPolicy:
    """One in a process of its own, that knows the target's times, those of rehearsed drafts, and what an
    earlier one has learned."""
    made = AutoPolicy(None, AutoOptions(calibrate=False))
    made.clock = lambda: 0.0
    made.know(table_of(where))
    made.attach(ToyModel(VOCABULARY), where.drafter, 1)  # type: ignore[arg-type]
    if rehearsed and not where.drafter.looks_up:
        drafter = where.drafter
        made.costs.measured(drafter.name, drafter.token_seconds, drafter.fixed_seconds)
    if learned is not None:
        made.restore(json.loads(json.dumps(learned)))
    return made


def in_one_engine(where: World, tokens: int, count: int) -> list[float]:
    return where.each(new_policy(where), [tokens] * count)


def by_command_line(where: World, tokens: int, count: int) -> list[float]:
    """Each request by a process of its own, which learns from the file of the one before."""
    learned, seconds = None, []
    for _ in range(count):
        policy = new_policy(where, learned)
        seconds += where.each(policy, [tokens])
        where.seed += 1000
        learned = policy.learned
    return seconds


WAYS = (in_one_engine, by_command_line)


@cache
def best_fixed(rate: float, cost: float, tokens: int, slope: float) -> float:
    """Seconds of a request by the best fixed length, plain decoding among them."""
    fixed = (
        statistics.mean(
            sum(world(rate, cost, seed, slope).each(FixedPolicy(length), [tokens] * 6)) / 6
            for seed in range(SEEDS)
        )
        for length in LENGTHS
    )
    return min(tokens * 1.0, *fixed)


def shares(
    way: Callable[[World, int, int], list[float]],
    rate: float,
    cost: float,
    tokens: int = TOKENS,
    slope: float = 0.05,
) -> list[float]:
    """By request from the first on: the best fixed length's time over the policy's."""
    runs = [way(world(rate, cost, seed, slope), tokens, 6) for seed in range(SEEDS)]
    best = best_fixed(rate, cost, tokens, slope)
    return [best / statistics.mean(column) for column in zip(*runs, strict=True)]


@pytest.mark.parametrize(
    ("rate", "cost", "slope", "way"),
    covering([0.5, 0.7, 0.9], [CHEAP, USUAL], [0.05, 0.25], WAYS, whole=4),
)
def test_what_pays_pays_from_the_first_request_on(
    rate: float, cost: float, slope: float, way: Callable[[World, int, int], list[float]]
) -> None:
    found = shares(way, rate, cost, slope=slope)
    assert found[0] >= 0.9
    assert found[4] >= 0.95


# Of six texts, whether a good draft (97 %) and a middling one (46 %, of the first text 14) have found each of
# 128 tokens, in bits.
FOUND = {
    quality: tuple(f"{int(digits, 16):0{TOKENS}b}" for digits in texts)
    for quality, texts in {
        "good": (
            "7cfff7ffffd7ffffafffffffffffffff",
            "4fffffffffffffffffffffffffffffff",
            "f6b6dfffffffffffffffffffffffffff",
            "e57fffffffffffffffffffffffffffff",
            "9f3fedffdfffbfff7ffefffdfffbfff7",
            "7edfffffffffffffffffffffffffffff",
        ),
        "middling": (
            "548020c9248492490924924924920024",
            "24936db6db6db6db6db6db6db6db6db6",
            "24b6db6db6db6db64924924924924924",
            "8144b0582c361b0d87c3e1f0f87c3e1f",
            "800280841108225044a8895912b26564",
            "348af15e6bcd79af35e6bcd79af35e6f",
        ),
    }.items()
}


def found_at(bits: str, position: int) -> float:
    return float(bits[position])


@pytest.mark.parametrize(
    ("quality", "way", "least"),
    [
        ("good", in_one_engine, 0.95),
        ("good", by_command_line, 0.95),
        ("middling", in_one_engine, 0.93),
        ("middling", by_command_line, 0.87),
    ],
)
def test_a_bad_stretch_does_not_speak_for_all_texts(quality: str, way: Any, least: float) -> None:
    """Texts as they were, token by token: some are worth little, and good ones have bad beginnings. The draft
    has to catch up with what was decoded without it, and runs cold then."""

    def run(seed: int, length: int = 0) -> float:
        seconds = []
        drafter = SimulatedDrafter(token_seconds=0.05, fixed_seconds=0.2, catch_up=0.04)
        where = World(drafter, rising(0.08), noise=0.05, cooled=2.0)
        policy: Any = FixedPolicy(length) if length else new_policy(where)
        for number, bits in enumerate(FOUND[quality] * 3):
            drafter.rate, where.seed = partial(found_at, bits), 100 * seed + number
            drafter.ran.clear()
            seconds += where.each(policy, [TOKENS])
            if way is by_command_line and not length:
                policy = new_policy(where, policy.learned)
        return sum(seconds[len(FOUND[quality]) :])

    fixed = min(run(0, length) for length in LENGTHS)
    made = [run(seed) for seed in range(SEEDS)]
    assert fixed / statistics.mean(made) >= least


@pytest.mark.parametrize("interrupted", [0.1, 0.25])
def test_interruptions_are_no_losses_by_drafts(interrupted: float) -> None:
    """A small model's rounds are short, so that others on the machine often interrupt them."""

    def run(seed: int, length: int = 0) -> float:
        drafter = SimulatedDrafter(token_seconds=0.04, fixed_seconds=0.3, catch_up=0.04)
        where = World(drafter, rising(0.1), 0, (2.0, 1.0), 0.1, interrupted, cooled=2.0)
        policy: Any = FixedPolicy(length) if length else new_policy(where)
        seconds = 0.0
        for number, bits in enumerate(FOUND["good"]):
            drafter.rate, where.seed = partial(found_at, bits), 100 * seed + number
            drafter.ran.clear()
            seconds += sum(where.each(policy, [TOKENS // 2]))
        return seconds

    fixed = min(statistics.mean(run(seed, length) for seed in range(6)) for length in LENGTHS)
    made = [run(seed) for seed in range(SEEDS)]
    assert fixed / statistics.mean(made) >= 0.85
    assert fixed / max(made) >= 0.6


@pytest.mark.parametrize(
    ("rate", "cost", "way"), covering([0.0, 0.05], [CHEAP, USUAL, DEAR], WAYS, whole=3)
)
def test_a_useless_draft_costs_its_tuition_once(
    rate: float, cost: float, way: Callable[[World, int, int], list[float]]
) -> None:
    found = shares(way, rate, cost)
    assert found[0] >= 0.93
    assert min(found[2:]) >= 0.97


@pytest.mark.parametrize(
    ("rate", "cost", "way"), covering([0.0, 0.5, 0.9], [CHEAP, USUAL, DEAR], WAYS, whole=3)
)
def test_short_outputs_lose_little(
    rate: float, cost: float, way: Callable[[World, int, int], list[float]]
) -> None:
    """The median of six requests, as a user meets them."""
    ratios = [
        statistics.median(8.0 / seconds for seconds in way(world(rate, cost, seed), 8, 6))
        for seed in range(SEEDS)
    ]
    assert statistics.median(ratios) >= 0.95


def test_it_drafts_in_the_first_round() -> None:
    where = world(0.7, USUAL)
    policy = new_policy(where)
    request = Request(0, [1] * 20, 20, SamplingParams(max_tokens=99), seed=0)
    assert policy.plan([request])[0].num_tokens >= 2


def test_one_slow_draft_is_no_reason_to_give_a_drafter_up() -> None:
    """It used to be: what the first draft took, cold, was believed for ever."""
    cold, warm = [], []
    for seed in range(SEEDS):
        where = world(0.9, CHEAP, seed)
        warm += where.each(new_policy(where), [TOKENS])
        where.cold = (20.0, 8.0)
        cold += where.each(new_policy(where, rehearsed=False), [TOKENS])
    assert statistics.mean(cold) - 28.0 <= 1.25 * statistics.mean(warm)


@pytest.mark.parametrize("catch_up", [0.0, 0.02])
def test_what_was_given_up_for_its_cost_is_timed_again(catch_up: float) -> None:
    """A machine that was busy for a while makes drafts dear; later they are cheap."""
    drafter = SimulatedDrafter(rate=lambda _: 0.9, token_seconds=2.0, catch_up=catch_up)
    where = World(drafter)
    policy = new_policy(where)
    where.each(policy, [400])
    drafter.token_seconds, before = CHEAP, where.drafted
    seconds = where.each(policy, [400] * (12 if catch_up else 6))
    assert where.drafted > before
    assert seconds[-1] < 0.5 * 400


@pytest.mark.parametrize("cost", [2.0, 10.0, 20.0])
def test_a_dear_draft_loses_no_more_than_any_other(cost: float) -> None:
    where = world(0.3, cost)
    seconds = where.each(new_policy(where), [TOKENS] * 8)
    assert seconds[0] <= 1.07 * TOKENS
    assert sum(seconds[1:]) <= 1.03 * 7 * TOKENS


def test_prompts_of_an_unproven_draft_are_charged() -> None:
    drafter = SimulatedDrafter(rate=lambda _: 0.0, token_seconds=0.15, catch_up=0.2)
    where = World(drafter, rising(0.05))
    policy = new_policy(where)
    request = Request(0, [1] * 20, 20, SamplingParams(max_tokens=TOKENS), seed=0)
    plans = policy.plan([request])
    before = policy.learned["account"][0]
    where.judge(policy, [request], plans)
    policy.report()
    # The draft itself costs 0.6, and its prompt 3.8, of which a first measurement is believed a part.
    assert policy.learned["account"][0] < before - 1.0


def test_a_try_is_judged_by_its_own_request() -> None:
    """Not by what the others of its batch gain."""
    good = SimulatedDrafter("good", rate=lambda _: 0.9, token_seconds=USUAL)
    useless = SimulatedDrafter("useless", rate=lambda _: 0.0, token_seconds=USUAL)
    where = World(SimulatedDrafter(members=(good, useless)))
    policy = AutoPolicy(None, AutoOptions(calibrate=False))
    policy.know(table_of(where))
    where.run(policy, [400] * 4, 4)
    rounds = policy.report()
    tried = sum(entry["rounds"] for name, entry in rounds.items() if name.startswith("useless"))
    assert tried < 0.03 * sum(entry["rounds"] for entry in rounds.values())
    assert not any(line.startswith("good") for line in policy.given_up())


def test_a_try_that_is_cancelled_has_not_failed() -> None:
    where = world(0.0, USUAL)
    policy = new_policy(where)
    where.each(policy, [TOKENS] * 2)
    pause = policy.learned["members"]["simulated, sampled"]["trials"][0]
    for number in range(20, 40):
        request = Request(number, [1] * 20, 20, SamplingParams(max_tokens=TOKENS), seed=0)
        policy.plan([request])
        policy.release(request)
    assert policy.learned["members"]["simulated, sampled"]["trials"][0] == pause


def test_another_text_is_noticed_however_long_nothing_paid() -> None:
    rates = {"now": 0.0}
    where = World(SimulatedDrafter(rate=lambda _: rates["now"], token_seconds=USUAL))
    policy = new_policy(where)
    where.each(policy, [TOKENS] * 20)
    rates["now"] = 0.9
    # The longest pause may just have begun.
    within = LONGEST_PAUSE // TOKENS + 2
    assert where.each(policy, [TOKENS] * within)[-1] < 0.6 * TOKENS


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_decisions_add_up_to_what_was_run(rate: float) -> None:
    where = world(rate, USUAL)
    policy = new_policy(where)
    seconds = sum(where.each(policy, [TOKENS] * 3))
    outcomes = policy.report().values()
    assert sum(one["emitted"] for one in outcomes) == pytest.approx(3 * TOKENS, rel=0.02)
    assert sum(one["seconds"] for one in outcomes) == pytest.approx(seconds, rel=0.1)
    saved = sum(one["saved_seconds"] for one in outcomes)
    assert saved == pytest.approx(3 * TOKENS - seconds, abs=0.05 * 3 * TOKENS)


def test_tries_become_rare_and_never_end() -> None:
    trials, at = Trials(), []
    for number in range(40 * LONGEST_PAUSE):
        trials.wait()
        if trials.rounds_left <= 0:
            at.append(number)
            trials.fail()
    pauses = [later - sooner for sooner, later in itertools.pairwise(at)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    assert len(at) > 30


def test_what_finds_something_once_in_a_thousand_rounds_loses_nothing() -> None:
    """And its finds are not passed over for that."""
    drafter = SimulatedDrafter(
        looks_up=True,
        token_seconds=0.0,
        rate=lambda _: 0.95,
        sure=lambda position: 1.0 if position % 1000 > 990 else 0.0,
    )
    where = World(drafter)
    assert sum(where.each(new_policy(where), [4000])) < 4000
    assert where.drafted


def test_plain_rounds_are_hardly_ever_thought_about() -> None:
    """Once a drafter is given up, most rounds are planned without looking at anything."""
    where = world(0.0, USUAL)
    policy = new_policy(where)
    asked = []
    policy.clock = lambda: float(len(asked.append(1) or asked)) * 0.0  # type: ignore[func-returns-value]
    where.each(policy, [TOKENS] * 8)
    asked.clear()
    where.each(policy, [TOKENS] * 4)
    assert len(asked) / 2 < 0.25 * 4 * TOKENS


def test_why_a_drafter_was_given_up_is_said_in_words() -> None:
    where = world(0.0, USUAL)
    policy = new_policy(where)
    assert policy.given_up() == []
    where.each(policy, [TOKENS])
    [sentence] = policy.given_up()
    assert sentence.startswith("simulated was given up for sampled requests after ")
    assert "0 of " in sentence
    assert "--policy fixed" in sentence
    [later] = new_policy(where, policy.learned).given_up()
    assert "in an earlier run" in later
    good = world(0.9, USUAL)
    policy = new_policy(good)
    good.each(policy, [TOKENS])
    assert policy.given_up() == []


def test_forgetting_begins_anew() -> None:
    where = world(0.0, USUAL)
    policy = new_policy(where)
    where.each(policy, [TOKENS] * 3)
    policy.forget()
    request = Request(99, [1] * 20, 20, SamplingParams(max_tokens=99), seed=0)
    assert policy.plan([request])[0].num_tokens >= 2
    assert policy.given_up() == []


@pytest.mark.parametrize("jump", [-1e6, 1e6, 3600.0])
def test_a_clock_that_jumps_changes_nothing_for_long(jump: float) -> None:
    where = world(0.9, USUAL)
    policy = new_policy(where)
    where.each(policy, [TOKENS])
    request = Request(999, [1] * 20, 20, SamplingParams(max_tokens=TOKENS), seed=0)
    plans = policy.plan([request])
    where.judge(policy, [request], plans, RoundTimes(jump, jump, jump))
    policy.release(request)
    # The policy's own clock jumps within a plan.
    ticks = iter([0.0, jump])
    policy.clock = lambda: next(ticks, jump)
    where.each(policy, [8])
    after = where.each(policy, [TOKENS] * 3)
    calm = world(0.9, USUAL)
    assert after[-1] <= 1.2 * calm.each(new_policy(calm), [TOKENS] * 4)[-1]


# What is kept on disk.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    return tmp_path / "costs"


def attached(rate: float = 0.0) -> tuple[AutoPolicy, World]:
    """A policy as an engine has it, with what is on disk."""
    where = world(rate, USUAL)
    policy = AutoPolicy()
    policy.attach(ToyModel(VOCABULARY), where.drafter, 1)  # type: ignore[arg-type]
    policy.know(table_of(where))
    return policy, where


def contents(folder: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(file.read_text()) for file in folder.iterdir())


def test_what_was_learned_is_written_on_closing_and_when_the_policy_is_gone(folder: Path) -> None:
    policy, where = attached()
    where.each(policy, [TOKENS])
    policy.close()
    [content] = contents(folder)
    assert content["learned"]["members"]["simulated, sampled"]["trials"][0] > 0
    other, where = attached()
    assert other.given_up()
    where.each(other, [TOKENS] * 8)
    del other
    [later] = contents(folder)
    pauses = [c["learned"]["members"]["simulated, sampled"]["trials"][0] for c in (content, later)]
    assert pauses[1] > pauses[0]


def test_what_was_learned_is_written_while_a_request_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(memory_module, "monotonic", lambda: now)
    policy, where = attached(0.9)
    request = Request(0, [1] * 20, 20, SamplingParams(max_tokens=10**6), seed=0)
    where.judge(policy, [request], policy.plan([request]), RoundTimes(0.1, 1.0, 0.0))
    assert not folder.exists()
    now = SAVE_SECONDS + 1.0
    where.judge(policy, [request], policy.plan([request]), RoundTimes(0.1, 1.0, 0.0))
    assert list(folder.iterdir())


@pytest.mark.parametrize(
    "broken",
    [
        {"form": 99},
        {"learned": {}},
        {"learned": {"drafts": {"simulated": [-1, 0, None]}, "members": {}, "account": [1, 0]}},
        {"learned": {"drafts": {"simulated": [1e300, 0, None]}, "members": {}, "account": [1, 0]}},
        {"learned": None, "rows": [[1, 1, 0, "fast"]]},
        {"learned": {"drafts": {}, "members": {}, "account": [float("nan"), 0]}},
        {
            "learned": {
                "drafts": {"simulated": [9.0, 0, None]},
                "members": {"simulated, sampled": {"acceptance": {}, "trials": [1e400, 0]}},
                "account": [1, 0],
            }
        },
    ],
)
def test_a_file_that_is_broken_or_from_the_future_is_no_reason_not_to_draft(
    folder: Path, broken: dict[str, Any]
) -> None:
    policy, _ = attached()
    policy.close()
    [file] = folder.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | broken))
    policy, _ = attached()
    request = Request(0, [1] * 20, 20, SamplingParams(max_tokens=99), seed=0)
    assert policy.plan([request])[0].num_tokens >= 2


def test_a_file_cannot_raise_what_may_be_lost(folder: Path) -> None:
    policy, where = attached()
    policy.close()
    [file] = folder.iterdir()
    content = json.loads(file.read_text())
    content["learned"]["account"] = [1e9, 1e9]
    file.write_text(json.dumps(content))
    policy, where = attached()
    assert sum(where.each(policy, [TOKENS] * 4)) < 4.2 * TOKENS


def test_another_load_has_drafts_timed_anew_and_not_the_target(folder: Path) -> None:
    policy, _ = attached()
    policy.close()
    again, _ = attached()
    again.costs.speed = 0.01
    slow = 3.0 * again.costs.plain_seconds(1)
    again.rehearse(lambda lengths, _: [RoundTimes(0.0, slow, 0.0) for _ in lengths])
    assert again.costs.plain_seconds(1) == pytest.approx(slow)
    again.close()
    [content] = contents(folder)
    assert content["speed"] == pytest.approx(again.costs.speed)
    assert not content["noisy"]


def test_times_of_a_noisy_moment_are_taken_again_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def calibrated(target: Any, rows: int) -> Any:
        calls.append(1)
        found = measure(target, rows)
        found.is_noisy = True
        return found

    measure = calibrate
    monkeypatch.setattr(memory_module, "calibrate", calibrated)
    for expected in (1, 2, 2, 2):
        policy, _ = attached()
        policy.close()
        assert len(calls) == expected


def test_two_processes_may_write_the_same_file(folder: Path) -> None:
    first, where = attached()
    second, _ = attached(0.9)
    where.each(first, [TOKENS])
    first.close()
    second.close()
    first.close()
    [content] = contents(folder)
    assert set(content) == {"form", "rows", "noisy", "speed", "learned"}
    assert recall(ToyModel(VOCABULARY), NgramDrafter(), 1).table.rows


def test_a_plain_reason_is_given_while_it_rests() -> None:
    where = world(0.0, USUAL)
    policy = new_policy(where)
    where.each(policy, [TOKENS])
    request = Request(9, [1] * 20, 20, SamplingParams(max_tokens=TOKENS), seed=0)
    reasons = set()
    for _ in range(30):
        plans = policy.plan([request])
        reasons |= {plan.reason for plan in plans if not plan.num_tokens}
        where.judge(policy, [request], plans, RoundTimes(0.0, 1.0, 0.0))
    assert reasons == {PlainReason.PAUSED}


def test_an_interrupted_prompt_of_the_draft_does_not_end_it() -> None:
    drafter = SimulatedDrafter(rate=lambda _: 0.6, token_seconds=0.15, catch_up=0.01)
    where = World(drafter, rising(0.05), cold=(200.0,), noise=0.05)
    seconds = where.each(new_policy(where), [TOKENS] * 12)
    assert statistics.mean(seconds[6:]) < 0.9 * TOKENS


def test_a_draft_that_became_good_is_found_though_planning_takes_all_that_may_be_lost() -> None:
    now = itertools.count(0, 2.0)
    drafter = SimulatedDrafter(rate=lambda _: 0.0, token_seconds=0.3)
    where = World(drafter, rising(0.2), noise=0.05)
    policy = new_policy(where)
    policy.clock = lambda: float(next(now))
    where.each(policy, [32] * 24)
    assert policy.learned["account"][0] < 0.0
    drafter.rate = lambda _: 0.95
    seconds = where.each(policy, [32] * 60)
    assert statistics.mean(seconds[-6:]) < 0.8 * 32
