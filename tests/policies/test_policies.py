"""Lengths that are fixed, and that follow acceptance by the tutorial's rule."""

from __future__ import annotations

import pytest

from forerun.contracts import Policy
from forerun.core import Draft, Origin, Request, RoundTimes, Verdict
from forerun.errors import UnknownNameError
from forerun.params import SamplingParams
from forerun.policies import make_policy
from forerun.policies.adaptive import AdaptivePolicy
from forerun.policies.base import USUAL_LENGTH
from forerun.policies.fixed import FixedPolicy

SEQUENCE = Request(0, [1], 1, SamplingParams(), seed=0)
TIMES = RoundTimes(0.0, 1.0, 0.0)
OTHER = Request(1, [1], 1, SamplingParams(), seed=0)


def outcome(drafted: int, accepted: int) -> tuple[Draft, Verdict]:
    draft = Draft.chain(range(drafted))
    origins = (*[Origin.ACCEPTED] * accepted, Origin.RECOVERED)
    return draft, Verdict(tuple(range(accepted)), tuple(range(accepted + 1)), origins)


def feed(policy: Policy, drafted: int, accepted: int) -> None:
    draft, verdict = outcome(drafted, accepted)
    policy.observe([SEQUENCE], [draft], [verdict], TIMES)


def test_each_sequence_has_its_own_adaptive_length() -> None:
    policy = AdaptivePolicy(4)
    draft, verdict = outcome(4, 4)
    for _ in range(6):
        policy.observe([SEQUENCE], [draft], [verdict], TIMES)
    assert [plan.num_tokens for plan in policy.plan([SEQUENCE, OTHER])] == [6, 4]
    policy.release(SEQUENCE)
    assert policy.plan([SEQUENCE])[0].num_tokens == 4


def test_plain_rounds_do_not_move_an_adaptive_length() -> None:
    policy = AdaptivePolicy(4)
    for _ in range(9):
        feed(policy, 0, 0)
    assert policy.plan([SEQUENCE])[0].num_tokens == 4


def test_policies_by_name() -> None:
    assert isinstance(make_policy("fixed", 3), FixedPolicy)
    assert isinstance(make_policy("adaptive", None), AdaptivePolicy)
    with pytest.raises(UnknownNameError, match="Did you mean 'fixed'"):
        make_policy("fixd", 3)


def test_lengths_where_nobody_says() -> None:
    assert FixedPolicy().plan([SEQUENCE])[0].num_tokens == USUAL_LENGTH
    assert AdaptivePolicy().plan([SEQUENCE])[0].num_tokens == USUAL_LENGTH
