"""Policy auto: what it may lose, how near it comes to the best length, and what it takes into account."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import Draft, Hints, Origin, PlainReason, Request, RoundTimes, Verdict
from forerun.costs.table import CostTable
from forerun.drafters.ngram import NgramDrafter
from forerun.params import SamplingParams
from forerun.policies import auto, budget
from forerun.policies.acceptance import Acceptance
from forerun.policies.auto import AutoOptions, AutoPolicy
from forerun.policies.beliefs import Beliefs, Member
from forerun.policies.budget import LEAST, RESTORED, Account
from forerun.policies.costs import Curve, DraftTimes, LiveCosts
from forerun.policies.decisions import in_words
from forerun.policies.fixed import FixedPolicy
from forerun.policies.lengths import Offer, best_lengths
from forerun.policies.memory import Memory, recall
from forerun.policies.outlook import Outlook
from forerun.testing import ToyModel
from tests.helpers.covering import covering
from tests.helpers.simulated_rounds import SimulatedDrafter, World

LENGTHS = (1, 2, 3, 4, 6, 8, 12)
OUTPUTS = [128] * 6
DRAFT_SECONDS = (0.02, 0.1, 0.25)
SLOW_RATES = [pytest.param(rate, marks=pytest.mark.slow) for rate in (0.3, 0.7, 0.95)]
# Plain rounds: 4 % of 128 and of the prompt, and one below zero.
MOST_LOST = 0.04 * (128 + 20) + 1.0


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning takes no time in a simulated world."""
    monkeypatch.setattr(auto, "perf_counter", lambda: 0.0)


def policy(world: World | None = None, batch_size: int = 1) -> AutoPolicy:
    """One that knows the costs of forwards in a world, and nothing of drafts."""
    made = AutoPolicy(None, AutoOptions(calibrate=False))
    if world is not None:
        rows = itertools.product((1, 2, 3, 4, 5, 6, 8, 10, 13, 17), {1, batch_size})
        table = CostTable.from_rows((n, b, 0, world.forward(n * b)) for n, b in rows)
        made.know(table)
    return made


def switching(good: float, bad: float, tokens: int = 100) -> Callable[[int], float]:
    return lambda position: good if (position // tokens) % 2 == 0 else bad


def rising(slope: float) -> Callable[[int], float]:
    return lambda tokens: 1.0 + slope * (tokens - 1)


HOSTILE = {
    "nothing is accepted": World(SimulatedDrafter(rate=lambda _: 0.0)),
    "and the draft is dear": World(SimulatedDrafter(rate=lambda _: 0.0, token_seconds=0.8)),
    "too little is accepted": World(SimulatedDrafter(rate=lambda _: 0.3, token_seconds=0.3)),
    "verification is dear": World(SimulatedDrafter(rate=lambda _: 0.6), forward=rising(0.9)),
    "a confident liar": World(
        SimulatedDrafter(looks_up=True, rate=lambda _: 0.05, token_seconds=0.0), forward=rising(0.3)
    ),
    "the text switches": World(SimulatedDrafter(rate=switching(0.8, 0.0)), forward=rising(0.3)),
    "and begins badly": World(SimulatedDrafter(rate=switching(0.0, 0.8)), forward=rising(0.3)),
    "it switches quickly": World(SimulatedDrafter(rate=switching(0.9, 0.0, 7))),
}


@pytest.mark.parametrize("informed", [True, False])
@pytest.mark.parametrize("world", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("outputs", [[8] * 60, [600]])
def test_it_loses_no_more_than_it_may(world: World, outputs: list[int], informed: bool) -> None:
    made = policy(world if informed else None)
    plain = world.plain(outputs)
    # Beyond the share of all time: what learning may cost, and one round below zero.
    assert world.run(made, outputs) <= 1.02 * plain + MOST_LOST


@pytest.mark.parametrize("batch_size", [4, 16])
@pytest.mark.parametrize("slope", [0.02, 0.2])
def test_batches_lose_no_more_either(batch_size: int, slope: float) -> None:
    world = World(SimulatedDrafter(rate=lambda _: 0.2, token_seconds=0.2), forward=rising(slope))
    plain = world.plain([200], batch_size)
    seconds = world.run(policy(world, batch_size), [200], batch_size)
    assert seconds <= 1.02 * plain + MOST_LOST * world.forward(batch_size)


@pytest.mark.parametrize(
    ("slope", "token_seconds", "rate"),
    [
        *covering([0.05, 0.25], DRAFT_SECONDS, [0.0, 0.5, 0.85], fast=2, whole=3),
        *covering([0.05, 0.25], DRAFT_SECONDS, SLOW_RATES, fast=3, whole=3),
    ],
)
def test_it_comes_near_the_best_length(slope: float, token_seconds: float, rate: float) -> None:
    """Over six outputs, of which the first teaches it all that it knows, and four seeds."""
    shares = []
    for seed in range(4):

        def world(seed: int = seed) -> World:
            drafter = SimulatedDrafter(rate=lambda _: rate, token_seconds=token_seconds)
            return World(drafter, rising(slope), seed)

        fixed = min(world().run(FixedPolicy(length), OUTPUTS) for length in LENGTHS)
        best = min(fixed, world().plain(OUTPUTS))
        shares.append(best / world().run(policy(world()), OUTPUTS))
    assert sum(shares) / len(shares) >= 0.94


@pytest.mark.parametrize(("entry", "slope", "rate"), [(0.3, 0.05, 0.7), (0.3, 0.2, 0.85)])
def test_what_any_draft_costs_is_not_taken_for_the_cost_of_a_token(
    entry: float, slope: float, rate: float
) -> None:
    """Otherwise long drafts would seem dear, and short ones cheap."""
    drafter = SimulatedDrafter(rate=lambda _: rate, token_seconds=0.05, fixed_seconds=0.2)
    forward = lambda tokens: 1.0 + slope * (tokens - 1) + (entry if tokens > 1 else 0.0)  # noqa: E731
    made = policy(World(drafter, rising(slope)))
    seconds = World(drafter, forward, noise=0.08).run(made, [128] * 10)
    best = min(World(drafter, forward).run(FixedPolicy(n), [128] * 10) for n in (1, 2, 4, 8))
    assert best / seconds > 0.9


@pytest.mark.parametrize("chilled", [(), (1.4,), (1.4, 1.2)])
def test_plain_rounds_that_drafts_made_slow_are_not_taken_for_usual_ones(
    chilled: tuple[float, ...],
) -> None:
    """Otherwise drafts that no longer pay would seem to."""
    world = World(SimulatedDrafter(rate=lambda _: 0.8), rising(0.05), chilled=chilled, noise=0.05)
    made = policy(world)
    world.run(made, [4000])
    assert world.drafted > 4000
    assert made.costs.plain_seconds(1) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("rate", [0.6, 1.0])
def test_who_knows_that_it_reads_too_much_is_not_tried(rate: float) -> None:
    """Below the context at which it pays, whatever would be accepted; without that knowledge it is."""
    drafter = SimulatedDrafter(rate=lambda _: rate, token_seconds=0.97, share=0.97)
    world = World(drafter)
    assert world.run(policy(world), [300] * 3) == world.plain([300] * 3)
    assert world.drafted == 0
    drafter.share = None
    world.run(policy(world), [300] * 3)
    assert world.drafted > 0


@pytest.mark.parametrize("off", [0.8, 1.0, 1.3])
def test_who_reads_little_is_used_as_far_as_it_pays(off: float) -> None:
    """What is measured corrects what it says of itself."""
    seconds = []
    for share in (0.25 * off, 0.25):
        drafter = SimulatedDrafter(rate=lambda _: 0.9, token_seconds=0.25, share=share)
        world = World(drafter)
        seconds.append(world.run(policy(world), OUTPUTS))
    fixed = min(World(drafter).run(FixedPolicy(length), OUTPUTS) for length in LENGTHS)
    assert seconds[1] < 1.06 * fixed
    assert seconds[0] < 1.06 * seconds[1]


def test_what_changes_within_a_text_is_followed() -> None:
    """No fixed length does as well."""
    world = World(SimulatedDrafter(rate=switching(0.9, 0.0)), forward=rising(0.1))
    fixed = min(world.run(FixedPolicy(length), [800] * 2) for length in LENGTHS)
    assert world.run(policy(world), [800] * 2) < 0.95 * min(fixed, world.plain([800] * 2))


def test_confidence_is_believed_as_far_as_it_is_true() -> None:
    """Two kinds of matches, of which one is hardly ever right: the policy finds out which."""
    sure = switching(0.8, 0.3, 20)
    drafter = SimulatedDrafter(
        looks_up=True, rate=switching(0.05, 0.9, 20), sure=sure, token_seconds=0.0
    )
    world = World(drafter, rising(0.3))
    fixed = min(world.run(FixedPolicy(length), [400] * 4) for length in LENGTHS)
    assert world.run(policy(world), [400] * 4) < 0.9 * min(fixed, world.plain([400] * 4))


def test_requests_of_one_namespace_do_not_distort_each_others_rates() -> None:
    """Side by side, one good and three middling: as if no namespace held them together."""
    chance, rates = Random(0), (0.9, 0.5, 0.5, 0.5)
    alone, named = Acceptance([0.6], 8.0), Acceptance([0.6], 8.0)
    for _ in range(200):
        for number, rate in enumerate(rates):
            accepted = int(chance.random() < rate)
            alone.observe(number, "", 0, 1, accepted)
            named.observe(number, "key", 0, 1, accepted)
    for number in range(len(rates)):
        [without], [within] = (
            alone.survival(number, "", 0, 1),
            named.survival(number, "key", 0, 1),
        )
        assert within == pytest.approx(without, abs=0.07)


def test_a_held_plan_ends_when_a_lookup_finds_more() -> None:
    """Most rounds of a model are not planned anew, and yet no short copy is passed over."""
    seen = list[int]()

    def copied(position: int) -> float:
        seen.append(position)
        return 0.98

    lookup = SimulatedDrafter(
        "lookup",
        True,
        copied,
        lambda position: 0.9 if position % 60 < 8 else 0.0,
        token_seconds=0.0,
    )
    model = SimulatedDrafter("model", rate=lambda _: 0.6, token_seconds=0.05)
    world = World(SimulatedDrafter(members=(lookup, model)), rising(0.1))
    made, calls = policy(world), itertools.count()
    made.clock = lambda: 0.0 * next(calls)
    world.run(made, [900])
    rounds = sum(outcome["rounds"] for outcome in made.decisions.as_dict().values())
    assert next(calls) / 2 < 0.6 * rounds
    assert {position // 60 for position in seen} >= set(range(2, 15))


def test_rounds_of_a_try_are_judged_together_whatever_lookups_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = policy()
    lookup = SimulatedDrafter(
        "lookup", True, lambda _: 0.0, lambda _: 0.0 if made._tried is None else 0.9
    )
    model = SimulatedDrafter("model", rate=lambda _: 0.0, token_seconds=0.3)
    world = World(SimulatedDrafter(members=(lookup, model)), rising(0.3))
    tries, observe = list[Any](), made.observe

    def watched(*round_: Any) -> None:
        tries.extend([made._plans] * (made._tried is not None))
        observe(*round_)

    monkeypatch.setattr(made, "observe", watched)
    world.run(made, [1000])
    assert max(len(list(rounds)) for _, rounds in itertools.groupby(tries, id)) > 1


def test_tokens_that_a_mask_forces_teach_nothing() -> None:
    world = World(SimulatedDrafter(rate=lambda _: 0.5), rising(0.1))
    made = policy(world)
    world.run(made, [100])
    before, plain = made.learned, made.costs.plain_seconds(1)
    draft = replace(Draft.chain([0] * 9), forced=True)
    verdict = Verdict(tuple(range(9)), (0,) * 10, (Origin.ACCEPTED,) * 9 + (Origin.BONUS,))
    for number in range(5):
        request = Request(100 + number, [1] * 20, 20, SamplingParams(max_tokens=99), seed=0)
        made.plan([request])
        made.observe([request], [draft], [verdict], RoundTimes(0.5, 9.0, 0.0))
        made.release(request)
    assert made.learned["drafts"] == before["drafts"]
    assert made.costs.plain_seconds(1) == plain
    member, known = (of["members"]["simulated, sampled"] for of in (made.learned, before))
    assert member["acceptance"] == known["acceptance"]


def test_of_several_drafters_the_better_one_drafts() -> None:
    good = SimulatedDrafter("good", rate=lambda _: 0.8, token_seconds=0.05)
    bad = SimulatedDrafter("bad", rate=lambda _: 0.3, token_seconds=0.05)
    world = World(SimulatedDrafter(members=(bad, good)), rising(0.1))
    made = policy(world)
    alone = World(good, rising(0.1))
    assert world.run(made, OUTPUTS) < 1.1 * alone.run(policy(alone), OUTPUTS)
    rounds = {name: outcome["rounds"] for name, outcome in made.decisions.as_dict().items()}
    by_good = sum(count for name, count in rounds.items() if name.startswith("good"))
    assert by_good > 0.8 * sum(rounds.values())


def test_a_prompt_is_not_run_through_the_draft_for_a_few_tokens() -> None:
    """What is known to be accepted makes no difference: the draft would not pay its prompt back."""
    drafter = SimulatedDrafter(rate=lambda _: 0.9, waiting=1)
    world = World(drafter)
    made = policy(world)
    world.run(made, OUTPUTS)
    drafter.waiting, world.drafted = 3000, 0
    world.run(made, [10] * 5)
    assert world.drafted == 0


def test_what_was_learned_is_where_the_next_one_begins() -> None:
    world = World(SimulatedDrafter(rate=lambda _: 0.9), rising(0.1))
    first = policy(world)
    world.run(first, OUTPUTS)
    request = Request(0, [1] * 20, 20, SamplingParams(max_tokens=99), seed=0)
    second = policy(world)
    second.attach(ToyModel(5), world.drafter, 1)  # type: ignore[arg-type]
    second.restore(first.learned)
    assert second.plan([request])[0].num_tokens > 3


@pytest.mark.parametrize("values", [[1e9, 1e9], [RESTORED + 1.0, 0.0], [-1e9, -1e9]])
def test_no_file_raises_what_may_be_lost_or_denies_it_for_ever(values: list[float]) -> None:
    account = Account(0.02, 1.0)
    account.restore(values)
    account.grant(1000.0)
    # The first request's tuition, and a share of its time.
    assert LEAST <= account.credit <= RESTORED + 1.0 + 0.02 * 1000.0
    assert account.learned[1] <= 1.0
    for _ in range(300):
        account.settle(1.0, 1.0, 0.0)
    assert account.credit > 0.0


def test_a_new_namespace_begins_as_all_of_them_were_and_goes_its_own_way() -> None:
    acceptance = Acceptance([0.3])
    for number in range(40):
        acceptance.observe(number, "code", 0, 4, 4)
    unknown = Acceptance([0.3]).survival(99, "chat", 0, 4)
    begun = acceptance.survival(99, "chat", 0, 4)
    assert begun[3] > 0.5 > unknown[0]
    for number in range(40, 80):
        acceptance.observe(number, "chat", 0, 4, 0)
    assert acceptance.survival(99, "chat", 0, 4)[0] < 0.2
    assert acceptance.survival(99, "code", 0, 4)[3] > 0.5


@pytest.mark.parametrize("drafts", [1, 3, 10])
def test_a_namespace_of_one_request_changes_nothing(drafts: int) -> None:
    """Its drafts count no more than without a namespace: a few bad ones must not end drafting."""
    alone, named = Acceptance([0.7], 8.0), Acceptance([0.7], 8.0)
    for number in range(drafts):
        alone.observe(1, "", 0, 4, number % 3)
        named.observe(1, "own", 0, 4, number % 3)
    assert named.survival(1, "own", 0, 4) == pytest.approx(alone.survival(1, "", 0, 4))
    named.release(1)
    assert named.survival(2, "own", 0, 4) != pytest.approx(named.survival(2, "other", 0, 4))


def remembered(memory: Memory) -> Memory:
    """The same, written with what a new engine knows."""
    memory.hand_over(Beliefs(Account(0.02, 6.0), LiveCosts()))
    memory.note()
    memory.save()
    return memory


def test_what_was_learned_of_one_draft_model_is_not_believed_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    for origin in ("good", "untrained"):
        drafter = NgramDrafter()
        drafter.origin = origin
        remembered(recall(ToyModel(5), drafter, 1))
    assert len(list((tmp_path / "costs").iterdir())) == 2


def test_nothing_found_is_the_reason_given() -> None:
    drafter = SimulatedDrafter(looks_up=True, sure=lambda _: 0.0)
    made = policy(World(drafter))
    made.attach(ToyModel(5), drafter, 1)  # type: ignore[arg-type]
    request = Request(0, [1], 1, SamplingParams(max_tokens=99), seed=0)
    assert made.plan([request])[0].reason is PlainReason.NOTHING_FOUND


def test_decisions_are_logged_in_words(caplog: pytest.LogCaptureFixture) -> None:
    world = World(SimulatedDrafter(rate=lambda _: 0.9))
    made = AutoPolicy(None, AutoOptions(calibrate=False, log_decisions=True))
    with caplog.at_level(logging.INFO, "forerun.policies"):
        world.run(made, [200])
    assert "are expected to be accepted" in caplog.text
    report = made.report()
    assert "simulated" in in_words(report)
    assert "s saved" in in_words(report)


@given(
    st.lists(st.lists(st.floats(0.05, 0.99), min_size=1, max_size=3), min_size=1, max_size=3),
    st.floats(0.01, 0.6),
)
def test_the_lengths_of_a_batch_are_the_best_of_all(rates: list[list[float]], slope: float) -> None:
    """Where drafts cost nothing: against all combinations of lengths."""
    survivals = [list(itertools.accumulate(row, lambda a, b: a * b)) for row in rates]
    size = len(rates)
    table = CostTable.from_rows((n, size, 0, 1 + slope * (n * size - 1)) for n in (1, 4))
    curve, member = Curve(table, size, 3), Member(0, SimulatedDrafter(), greedy=False)  # type: ignore[arg-type]

    def rate(lengths: tuple[int, ...]) -> float:
        tokens = sum(sum(row[:n]) for row, n in zip(survivals, lengths, strict=True))
        return (size + tokens) / curve.at(sum(lengths))

    offers = [Offer(member, row, 0, DraftTimes(0.0, 0.0)) for row in survivals]
    found = best_lengths(offers, curve, 1.0)
    every = itertools.product(*(range(len(row) + 1) for row in survivals))
    best = max(map(rate, every))
    if found is not None:
        assert rate(tuple(found.lengths)) == pytest.approx(found.rate)
        assert found.rate == pytest.approx(best)
    else:
        # Gains within the noise are left alone.
        assert best <= 1.05 * size / curve.plain


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_a_drafter_drafts_once_for_greedy_and_sampled_requests(first: float) -> None:
    """Its time counts once, whatever the requests of a batch are, and is learned."""
    drafter = SimulatedDrafter()
    members = [Member(0, drafter, greedy) for greedy in (True, False)]  # type: ignore[arg-type]
    table = CostTable.from_rows((n, 2, 0, 1 + 0.1 * (2 * n - 1)) for n in (1, 4))
    found, learned = [], []
    for pair in (members, members[1:] * 2):
        offers = [Offer(one, [0.9, 0.8, 0.7], 0, DraftTimes(first, 0.2)) for one in pair]
        found.append(best_lengths(offers, Curve(table, 2, 3), 1.0))
        beliefs = Beliefs(Account(0.02, 6.0), LiveCosts())
        learned.append(beliefs.learn_times(2, offers, 3.0, [0.9, 0.9, 900.0], cold=False)[0])
    assert found[0] == found[1]
    assert found[0] is not None
    assert learned[0] == learned[1] < 100.0


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0, 0.2)), min_size=1, max_size=30))
def test_times_of_drafts_stay_within_what_was_seen(seen: list[tuple[int, float]]) -> None:
    times = DraftTimes(0.01, 0.002)
    for tokens, seconds in seen:
        times.observe(tokens, seconds)
        assert times.fixed >= 0
        assert times.per_token >= 0
    assert times(1) <= times(16) <= 16 * 0.2 + 0.2


def test_a_table_that_is_wrong_of_one_batch_size_is_corrected_for_that_size() -> None:
    seconds = {1: 1.0, 2: 1.2, 4: 1.5}
    wrong = {1: 1.0, 2: 1.2, 4: 2.6}
    table = CostTable.from_rows((n, b, 0, n * wrong[b]) for n in (1, 4) for b in wrong)
    costs = LiveCosts(table)
    for _ in range(40):
        for size, value in seconds.items():
            costs.observe(size, 0, value)
    for size, value in seconds.items():
        assert costs.plain_seconds(size) == pytest.approx(value, rel=0.05)


def test_costs_are_kept_and_measured_anew_where_the_file_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    target = ToyModel(5)
    first = remembered(recall(target, NgramDrafter(), 1))
    (path,) = (tmp_path / "costs").iterdir()
    assert recall(target, NgramDrafter(), 1).table == first.table
    for content in ("", "{}", '{"rows": [[1, 1, 0, -1]], "learned": {}}', "[" * 10_000):
        path.write_text(content)
        assert recall(target, NgramDrafter(), 1).table.rows
        assert "measured anew" in caplog.text
        caplog.clear()


def test_a_disk_that_takes_nothing_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "costs").write_text("a file where the folder should be")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    memory = recall(ToyModel(5), NgramDrafter(), 1)
    for _ in range(3):
        remembered(memory)
    assert caplog.text.count("cannot be kept") == 1


@pytest.mark.parametrize("planning", [0.0, 0.01, 0.1])
def test_texts_are_looked_at_less_often_while_nothing_is_found(planning: float) -> None:
    """The dearer a look, the rarer: looks and what they miss stay a small share of the time."""
    looked: list[int] = []

    def sure(position: int) -> float:
        looked.append(position)
        return 1.0 if position >= 150 else 0.0

    world = World(SimulatedDrafter(looks_up=True, rate=lambda _: 1.0, sure=sure, token_seconds=0.0))
    made = policy(world)
    made.attach(ToyModel(5), world.drafter, 1)  # type: ignore[arg-type]
    made.clock = itertools.count(step=planning).__next__
    for number in range(3):
        del looked[:]
        world.each(made, [140])
        # Early in a text much may be found, whatever the one before was like.
        for before, after in pairwise(looked):
            assert after - before <= 1 + budget.EARLY * after
        assert planning * len(looked) < 0.06 * 140 or not number
    if planning:
        assert len(looked) < 110
    else:
        assert looked == list(range(139))
    # Rounds of requests that ask for none are no reason to look less often.
    for number in range(300):
        asked = Request(1000 + number, [1] * 20, 20, SamplingParams(max_tokens=9), 0)
        asked.speculative = False
        world.judge(made, [asked], made.plan([asked]))
        made.release(asked)
    del looked[:]
    world.each(made, [400])
    found = [position for position in looked if position >= 150]
    assert found[0] <= 150 + (2 * budget.MOST_PLANNING * 600) ** 0.5
    assert world.drafted > 0.7 * (400 - found[0])


@pytest.mark.parametrize("looks_up", [True, False])
def test_sampled_requests_say_nothing_of_greedy_ones(looks_up: bool) -> None:
    """Greedy requests take no longer if sampled ones, which accept little, come between them."""

    def seconds(between: int) -> float:
        good = SimulatedDrafter(looks_up=looks_up, rate=lambda _: 0.9, token_seconds=0.05)
        greedy = World(good, forward=rising(0.2), temperature=0.0)
        sampled = World(replace(good, rate=lambda _: 0.1), forward=rising(0.2))
        made = policy(greedy)
        made.attach(ToyModel(5), good, 1)  # type: ignore[arg-type]
        made.clock = itertools.count(step=0.02).__next__
        total = 0.0
        for _ in range(6):
            sampled.each(made, [128] * between)
            total += sum(greedy.each(made, [128]))
        return total

    assert seconds(1) < 1.02 * seconds(0)


def test_pauses_of_sampled_requests_end_with_them() -> None:
    """A greedy request is looked up in each of its first rounds, whatever sampled ones have not found."""
    looked: list[int] = []

    def sure(position: int) -> float:
        looked.append(position)
        return 0.0

    world = World(SimulatedDrafter(looks_up=True, sure=sure), temperature=0.0)
    made = policy(world)
    made.attach(ToyModel(5), world.drafter, 1)  # type: ignore[arg-type]
    made.clock = itertools.count(step=0.1).__next__
    replace(world, temperature=1.0).each(made, [400])
    assert len(looked) < 200
    del looked[:]
    world.each(made, [40])
    assert looked[:10] == list(range(10))


def test_a_sampled_request_beside_a_greedy_one_is_tried_again() -> None:
    """Its drafts, given up for what they brought, come back although the greedy one drafts in all rounds."""
    accepted = [0.0]
    drafter = SimulatedDrafter(
        rate=lambda position: 0.9 if position >= 1000 else accepted[0], token_seconds=0.02
    )
    world, chance = World(drafter, forward=rising(0.1)), Random(0)
    made = policy(world, 2)
    made.attach(ToyModel(5), drafter, 2)  # type: ignore[arg-type]
    greedy = Request(10**6, [1] * 20, 20, SamplingParams(max_tokens=10**6, temperature=0.0), 0)
    greedy.extend([0] * 1000)
    drafted = []
    for number in range(1, 20):
        accepted[0] = 0.0 if number < 8 else 0.9
        params = SamplingParams(max_tokens=200)
        both = [greedy, Request(10**6 + number, [1] * 20, 20, params, 0)]
        drafted.append(0)
        while both[1].num_output_tokens < 200:
            plans = made.plan(both)
            drafted[-1] += plans[1].num_tokens
            world.judge(made, both, plans, chance=chance)
        made.release(both[1])
    assert drafted[6] < 20 < 100 < drafted[-1]


def test_what_gains_little_is_looked_for_less_often() -> None:
    """Pauses grow with the rounds in vain, and with the price of a look over what its drafts gain."""
    good, bad = budget.Search(), budget.Search()
    for _ in range(200):
        good.gained(2.0)
        bad.gained(-0.1)
    pauses = []
    for search in (good, bad, bad):
        search.observe(200)
        pauses.append(search.pause(0.05, 1000))
    assert 1 < pauses[0] < pauses[1] / 4 < pauses[2] / 5
    assert bad.pause(0.0, 1000) == 1
    bad.observe(1, accepted=1)
    assert bad.pause(0.05, 1000) == 1


def test_a_drafter_that_finds_nothing_is_not_given_up_for_it() -> None:
    """Nor has the time of its next try come: it could not have drafted."""
    sure = lambda position: 1.0 if position < 60 else 0.0  # noqa: E731
    world = World(SimulatedDrafter(looks_up=True, rate=lambda _: 1.0, sure=sure, token_seconds=0.0))
    made = policy(world)
    made.attach(ToyModel(5), world.drafter, 1)  # type: ignore[arg-type]
    world.each(made, [245])
    assert not made.given_up()
    assert made.learned["members"]["simulated, sampled"]["trials"] == [0, 0]


@pytest.mark.parametrize("looks_up", [True, False])
def test_a_request_that_asks_for_none_is_not_looked_at(
    looks_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, offers = list[Request](), Outlook.offers

    def watched(outlook: Outlook, request: Request, *args: Any) -> Any:
        looked.append(request)
        return offers(outlook, request, *args)

    monkeypatch.setattr(Outlook, "offers", watched)
    made = policy(World(SimulatedDrafter(looks_up=looks_up)))
    made.attach(ToyModel(5), SimulatedDrafter(looks_up=looks_up), 1)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=200)
    request = Request(0, [1], 1, params, seed=0, speculative=False)
    for _ in range(100):
        assert made.plan([request])[0].reason is PlainReason.ASKED
        verdict = Verdict((), (0,), (Origin.PLAIN,))
        request.extend((0,))
        made.observe([request], [Draft.chain([])], [verdict], RoundTimes(0.0, 1.0, 0.0))
    assert made.learned["members"]["simulated, sampled"]["trials"] == [0, 0]
    assert len(looked) < 5


def test_no_more_is_planned_than_a_request_allows() -> None:
    """A longer plan would be cut by the engine, and what was never drafted be taken for rejected."""
    world = World(SimulatedDrafter(rate=lambda _: 1.0, token_seconds=0.01))
    made = policy(world)
    made.attach(ToyModel(5), world.drafter, 1)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=200)
    request = Request(0, [1], 1, params, seed=0, hints=Hints(num_speculative_tokens=2))
    lengths = []
    while request.num_output_tokens < 199:
        plans = made.plan([request])
        lengths.append(plans[0].num_tokens)
        world.judge(made, [request], plans)
    assert max(lengths) == 2
