"""Lengths follow acceptance, and speculation stops where it loses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import Tensor

from forerun.core import Draft, Origin, Request, Tree, Verdict
from forerun.engine import round as rounds
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import UnknownNameError
from forerun.params import SamplingParams
from forerun.policies import make_policy
from forerun.policies.adaptive import AdaptivePolicy
from forerun.policies.fixed import FixedPolicy
from forerun.policies.monitor import MIN_ROUNDS, PAUSE, PLAIN_ROUNDS, PROBE_ROUNDS, Monitor
from forerun.testing import ToyModel, TreeDrafter
from tests.matrix import TARGET

SEQUENCE = Request(0, [1], 1, SamplingParams(), seed=0)
OTHER = Request(1, [1], 1, SamplingParams(), seed=0)


def outcome(drafted: int, accepted: int) -> tuple[Draft, Verdict]:
    draft = Draft.chain(range(drafted))
    origins = (*[Origin.ACCEPTED] * accepted, Origin.RECOVERED)
    return draft, Verdict(tuple(range(accepted)), tuple(range(accepted + 1)), origins)


def feed(policy: object, drafted: int, accepted: int, seconds: float = 1.0) -> None:
    draft, verdict = outcome(drafted, accepted)
    policy.observe([SEQUENCE], [draft], [verdict], seconds)  # type: ignore[attr-defined]


def test_each_sequence_has_its_own_adaptive_length() -> None:
    policy = AdaptivePolicy(4)
    draft, verdict = outcome(4, 4)
    for _ in range(6):
        policy.observe([SEQUENCE], [draft], [verdict], 1.0)
    assert [plan.num_tokens for plan in policy.plan([SEQUENCE, OTHER])] == [6, 4]
    policy.release(SEQUENCE)
    assert policy.plan([SEQUENCE])[0].num_tokens == 4


def test_plain_rounds_do_not_move_an_adaptive_length() -> None:
    policy = AdaptivePolicy(4)
    for _ in range(9):
        feed(policy, 0, 0)
    assert policy.plan([SEQUENCE])[0].num_tokens == 4


def planned(monitor: Monitor) -> int:
    return monitor.plan([SEQUENCE])[0].num_tokens


def timed() -> Monitor:
    """A monitor that has timed plain rounds, of a second each."""
    monitor = Monitor(FixedPolicy(4))
    for _ in range(PLAIN_ROUNDS):
        feed(monitor, 0, 0)
    return monitor


# Seconds of a drafting round that pays from 30 % of 4 tokens on.
SLOW = 2.2


def rounds_of(monitor: Monitor, count: int, accepted: int | None) -> None:
    """Rounds that are planned as drafting ones, or as plain ones where nothing is accepted."""
    for _ in range(count):
        if accepted is None:
            assert planned(monitor) == 0
            feed(monitor, 0, 0)
        else:
            assert planned(monitor) == 4
            feed(monitor, 4, accepted, SLOW)


def test_the_monitor_waits_stops_probes_and_comes_back() -> None:
    monitor = timed()
    rounds_of(monitor, MIN_ROUNDS, 1)
    rounds_of(monitor, PAUSE, None)
    rounds_of(monitor, PROBE_ROUNDS, 0)  # the first probe fails
    rounds_of(monitor, 2 * PAUSE, None)  # and doubles the pause
    rounds_of(monitor, MIN_ROUNDS, 3)  # the second one does not
    assert monitor.break_even(1) == pytest.approx(0.3)
    # It is over, and so is the double pause.
    rounds_of(monitor, 10, 0)
    while planned(monitor):
        feed(monitor, 4, 0, SLOW)
    rounds_of(monitor, PAUSE, None)
    assert planned(monitor) == 4


def test_the_monitor_leaves_good_drafts_alone() -> None:
    rounds_of(timed(), 3 * MIN_ROUNDS, 2)


def test_break_even_follows_from_measured_times() -> None:
    """A drafting round of 1.6 plain ones with 4 tokens drafted pays from 0.6 accepted on: 15 %."""
    monitor = Monitor(FixedPolicy(4))
    assert monitor.break_even(1) is None
    feed(monitor, 4, 2, seconds=1.6)
    assert monitor.break_even(1) is None
    feed(monitor, 0, 0, seconds=1.0)
    assert monitor.break_even(1) == pytest.approx(0.15)
    assert monitor.break_even(2) is None


def test_trees_count_by_their_depth_until_times_are_known() -> None:
    """Sixteen nodes of which four are accepted, all that a path has: nothing could be better."""
    monitor = Monitor(FixedPolicy(4))
    draft = Draft(Tree((-1, 0, 1, 2, *[-1] * 12)), tuple(range(16)))
    origins = (*[Origin.ACCEPTED] * 4, Origin.BONUS)
    verdict = Verdict((0, 1, 2, 3), (0, 1, 2, 3, 4), origins)
    for _ in range(MIN_ROUNDS):
        monitor.observe([SEQUENCE], [draft], [verdict], 1.0)
    for _ in range(MIN_ROUNDS):
        monitor.observe([OTHER], [Draft.chain(range(4))], [Verdict((), (1,), origins[-1:])], 1.0)
    assert monitor.break_even(1) is None
    # Rounds of two have not been timed either, nor does their batch need plain ones.
    assert [plan.num_tokens for plan in monitor.plan([SEQUENCE, OTHER])] == [4, 0]


def test_rounds_in_which_some_draft_are_timed() -> None:
    """The mean is over the batch: 0.6 plain rounds more for 2 tokens a request."""
    monitor = Monitor(FixedPolicy(4))
    (drafted, verdict), (plain, plain_verdict) = outcome(4, 2), outcome(0, 0)
    monitor.observe([SEQUENCE, OTHER], [drafted, plain], [verdict, plain_verdict], 1.6)
    monitor.observe([SEQUENCE, OTHER], [plain] * 2, [plain_verdict] * 2, 1.0)
    assert monitor.break_even(2) == pytest.approx(0.3)


def test_one_slow_round_changes_nothing() -> None:
    """A round that runs a prompt through the draft model is not a drafting round's usual time."""
    monitor = Monitor(FixedPolicy(4))
    feed(monitor, 0, 0, seconds=1.0)
    for _ in range(9):
        feed(monitor, 4, 3, seconds=1.6)
    feed(monitor, 4, 3, seconds=40.0)
    assert monitor.break_even(1) == pytest.approx(0.15)


def test_plain_rounds_are_timed_on_purpose_and_a_costly_draft_is_found_out() -> None:
    """Half of the tokens accepted, and yet a loss: a drafting round takes ten plain ones."""
    monitor, drafting, plain = Monitor(FixedPolicy(4)), 0, 0
    for _ in range(60):
        if planned(monitor):
            drafting += 1
            feed(monitor, 4, 2, seconds=10.0)
        else:
            plain += 1
            feed(monitor, 0, 0, seconds=1.0)
    assert drafting <= 30
    assert plain >= 30


class Working(ToyModel):
    """Counts its work, which is all the time that passes in a test."""

    seconds = 0.0

    def next_logits(self, token_ids: Sequence[int]) -> Tensor:
        Working.seconds += 1.0
        return super().next_logits(token_ids)


def test_a_hopeless_draft_is_given_up_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculation stops, is probed again, and the output stays that of plain decoding."""
    monkeypatch.setattr(rounds, "perf_counter", lambda: Working.seconds)
    hopeless = Working(TARGET.vocab_size, seed=99)
    target = Working(TARGET.vocab_size)
    params = SamplingParams(temperature=0.0, max_tokens=200)
    outputs = {}
    for monitored in (True, False):
        config = SpeculativeConfig(num_speculative_tokens=4, monitor=monitored)
        engine = Engine(target, TreeDrafter(hopeless, (1, 1, 1, 1)), config)
        outputs[monitored] = engine.generate([[1, 2, 3]], params)[0]
    assert outputs[True].token_ids == outputs[False].token_ids
    assert outputs[False].stats.num_plain_rounds <= 1
    assert outputs[True].stats.num_plain_rounds > 100
    assert outputs[True].stats.num_drafts < 60


def test_policies_by_name() -> None:
    assert make_policy("fixed", 3, monitored=False).name == "fixed"
    assert isinstance(make_policy("adaptive", 3), Monitor)
    with pytest.raises(UnknownNameError, match="Did you mean 'fixed'"):
        make_policy("fixd", 3)
