"""Both sides of a comparison pay for the same work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from forerun.core import Plan, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.measure.paired import compare
from forerun.params import SamplingParams
from forerun.policies.base import BasePolicy
from forerun.progress import watched_by
from forerun.testing import ToyModel
from tests.helpers.counting import Counting


def test_every_run_starts_from_empty_caches() -> None:
    """The target's and the draft's: a prompt that one side need not run makes it look faster."""
    draft, ran = Counting(11), []
    drafter = DraftModelDrafter(draft, 2, draft.max_context)
    engine = Engine(ToyModel(11), drafter, SpeculativeConfig(policy="fixed"), max_batch_size=2)
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with watched_by(lambda *_: ran.append(draft.ran)):
        comparison = compare(engine, [1, 2, 3] * 9, params, 3)
    for pair in comparison.pairs:
        assert pair.speculative.completion.stats.num_cached_tokens == 0
    # What the draft ran in each pair, without the warm-up.
    [each] = {after - before for before, after in pairwise(ran)}
    assert each > 27


class _Noting(BasePolicy):
    """Counts the rounds that it planned and saw."""

    name = "noting"

    def __init__(self) -> None:
        self.planned = self.seen = 0

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        self.planned += 1
        return [Plan(2)] * len(requests)

    def observe(self, *_: Any) -> None:
        self.seen += 1


def test_the_warm_up_teaches_the_policy_nothing() -> None:
    """The first measured run is that of a policy as it was before."""
    model, policy = ToyModel(11), _Noting()
    drafter = DraftModelDrafter(ToyModel(11), 1, model.max_context)
    engine = Engine(model, drafter, SpeculativeConfig(), policy=policy)
    known: list[tuple[int, int]] = []
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with watched_by(lambda *_: known.append((policy.planned, policy.seen))):
        comparison = compare(engine, [1, 2, 3], params, 2)
    assert known[0] == (0, 0)
    assert policy.planned == policy.seen > 0
    rounds = [pair.speculative.completion.stats.num_target_forwards for pair in comparison.pairs]
    assert policy.seen == sum(rounds)
