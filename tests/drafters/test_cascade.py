"""A cascade asks in order, by what is known before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import pytest

from forerun.contracts import DrafterSetup
from forerun.core import Draft, Drawing, Exactness, Plan, Request, Tree
from forerun.drafters import drafters_of
from forerun.drafters.base import BaseDrafter
from forerun.drafters.cascade import CascadeDrafter, CascadeOptions
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter, NgramOptions
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError, UnknownNameError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import ToyModel


class Scripted(BaseDrafter):
    """Proposes its own token, as confident as it is told to be, and notes what it was asked."""

    def __init__(self, name: str, token: int, sure: float, shared_layers: int = 0) -> None:
        self.name, self.token, self.sure = name, token, sure
        self.shared_layers = shared_layers
        self.plans: list[Plan] = []
        self.observed = 0
        self.released: list[int] = []

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        raise NotImplementedError

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        self.plans += plans
        return [Draft.chain([self.token] * plan.num_tokens) for plan in plans]

    def observe(self, requests, drafts, verdicts, output) -> None:  # type: ignore[no-untyped-def]
        self.observed += 1

    def confidence(self, request: Request) -> float:
        # By the row, so that a batch may be split.
        return self.sure if request.row % 2 == 0 else 0.0

    def release(self, request: Request) -> None:
        self.released.append(request.request_id)


def texts(count: int) -> list[Request]:
    return [Request(row, [1, 2], 2, SamplingParams(), seed=row, row=row) for row in range(count)]


def test_it_is_as_exact_as_its_least_exact_member() -> None:
    members = [Scripted("one", 1, 0.5), Scripted("two", 2, 0.5)]
    assert CascadeDrafter(members).exactness is Exactness.DISTRIBUTIONAL
    members[1].exactness = Exactness.APPROXIMATE
    cascade = CascadeDrafter(members)
    assert cascade.exactness is Exactness.APPROXIMATE
    assert Engine(ToyModel(11), cascade).exactness is Exactness.APPROXIMATE


@pytest.mark.parametrize(("sure", "chosen"), [(0.5, 1), (0.39, 2), (0.4, 1)])
def test_the_first_that_is_confident_enough_proposes(sure: float, chosen: int) -> None:
    members = [Scripted("one", 1, sure), Scripted("two", 2, 0.0)]
    cascade = CascadeDrafter(members, 0.4)
    drafts = cascade.propose(texts(1), [Plan(3)], Randomness())
    assert drafts[0].token_ids == (chosen,) * 3


def test_a_batch_is_split_and_put_together_again() -> None:
    members = [Scripted("one", 1, 0.9), Scripted("two", 2, 0.0)]
    drafts = CascadeDrafter(members).propose(
        texts(4), [Plan(1), Plan(2), Plan(0), Plan(3)], Randomness()
    )
    assert [draft.token_ids for draft in drafts] == [(1,), (2, 2), (), (2, 2, 2)]


def test_a_member_that_runs_layers_drafts_for_all_or_none() -> None:
    first, last = Scripted("one", 1, 0.9), Scripted("two", 2, 0.0, shared_layers=2)
    cascade = CascadeDrafter([first, last])
    assert cascade.shared_layers == 2
    drafts = cascade.propose(texts(2), [Plan(1), Plan(2)], Randomness())
    assert [draft.token_ids for draft in drafts] == [(), (2, 2)]
    assert last.plans == [Plan(0), Plan(2)]
    assert not first.plans
    drafts = cascade.propose(texts(1), [Plan(1)], Randomness())
    assert drafts[0].token_ids == (1,)


def test_plans_are_fitted_to_who_follows_them() -> None:
    first, last = Scripted("one", 1, 0.9), Scripted("two", 2, 0.0)
    last.drawings, last.takes_trees = frozenset(Drawing), True
    cascade = CascadeDrafter([first, last])
    assert cascade.drawings == frozenset(Drawing)
    plan = Plan(2, Drawing.SAMPLED, tree=Tree((-1, -1, 0)))
    cascade.propose(texts(2), [plan, plan], Randomness())
    assert first.plans == [Plan(2, Drawing.GREEDY)]
    assert last.plans == [plan]
    first.takes_trees = True
    cascade.propose(texts(1), [plan], Randomness())
    assert first.plans[-1] == Plan(2, Drawing.GREEDY, num_nodes=3)


def test_members_may_have_lengths_of_their_own() -> None:
    members = [Scripted("one", 1, 0.9), Scripted("two", 2, 0.0)]
    cascade = CascadeDrafter(members, lengths=(None, 2))
    drafts = cascade.propose(texts(2), [Plan(5), Plan(5)], Randomness())
    assert [len(draft) for draft in drafts] == [5, 2]
    own = CascadeOptions(cascade=("suffix:16", "draft_model"))
    assert own.entries == [("suffix", 16), ("draft_model", None)]
    for entry in ("suffix:", "suffix:0", "suffix:x", "suffix:65", "suffix:-1"):
        with pytest.raises(ConfigError, match="names no length"):
            CascadeOptions(cascade=(entry, "draft_model"))


def test_all_members_see_and_forget_every_request() -> None:
    members = [Scripted("one", 1, 0.9), Scripted("two", 2, 0.0)]
    engine = Engine(ToyModel(5), CascadeDrafter(members), SpeculativeConfig(policy="fixed"))
    engine.generate([[1, 2], [3]], SamplingParams(temperature=0.0, max_tokens=6))
    for member in members:
        assert member.observed >= 2
        assert sorted(member.released) == [0, 1]


def test_nonsense_is_refused() -> None:
    one = Scripted("one", 1, 0.9)
    for members in ([], [one], [one, Scripted("one", 2, 0.0)]):
        with pytest.raises(ConfigError, match="cascade"):
            CascadeDrafter(members)
    with pytest.raises(ConfigError, match="one member that runs layers"):
        CascadeDrafter([Scripted("one", 1, 0.9, 1), Scripted("two", 2, 0.0, 2)])
    with pytest.raises(UnknownNameError, match="ngrm"):
        CascadeOptions(cascade=("ngrm", "draft_model"))
    with pytest.raises(UnknownNameError):
        CascadeOptions(cascade=("cascade", "draft_model"))
    with pytest.raises(ConfigError, match="nothing to choose from"):
        CascadeOptions(cascade=("suffix:4", "suffix:8"))


def test_a_cascade_needs_and_reads_what_its_members_do() -> None:
    assert drafters_of("ngram", {}) == [NgramDrafter]
    assert drafters_of("cascade", {}) == [CascadeDrafter, SuffixDrafter, DraftModelDrafter]
    options = {"cascade": ("ngram", "suffix"), "prompt_lookup_max": 3, "cascade_confidence": 0.5}
    config = SpeculativeConfig(method="cascade", options=options)
    assert not any(drafter.needs_draft_model for drafter in config.drafters)
    assert config.read(NgramOptions) == NgramOptions(prompt_lookup_max=3)
    assert config.read(CascadeOptions).cascade_confidence == 0.5
    with pytest.raises(ConfigError, match="draft_dtype is not read by method 'cascade'"):
        replace(config, options={**options, "draft_dtype": "bf16"})
