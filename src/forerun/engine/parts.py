"""Parts that the rounds of an engine work with, parts that do nothing, and the hook that watches rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forerun.compression import Compression
from forerun.contracts import Cache, CausalLM, Drafter, Eviction, Policy, Verifier
from forerun.core import (
    MOST_NODES,
    NO_DRAFT,
    Batch,
    Draft,
    Exactness,
    ForwardOutput,
    PlainReason,
    Plan,
    Request,
    RoundTimes,
    Tree,
    Verdict,
)
from forerun.drafters.base import BaseDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.guarded import GuardedDrafter
from forerun.engine.requests import Running
from forerun.engine.settings import check_depth, new_cache
from forerun.randomness import Randomness
from forerun.trees.search import resolve_tree
from forerun.verification import AUTO, make_rule


@dataclass(frozen=True, slots=True)
class TimedRound:
    """A round that is over.

    Args:
        requests, plans, drafts, verdicts: those of the batch, in its order.
        times: times of the whole batch.
    """

    requests: Sequence[Request]
    plans: Sequence[Plan]
    drafts: Sequence[Draft]
    verdicts: Sequence[Verdict]
    times: RoundTimes

    @property
    def reasons(self) -> list[PlainReason]:
        """For each request the reason why it did not draft, if it did not."""
        return [
            draft.reason if plan.num_tokens else plan.reason
            for plan, draft in zip(self.plans, self.drafts, strict=True)
        ]


OnRound = Callable[[TimedRound], None]
"""A hook that sees a round after it is over and counted."""


ASKED = Plan(0, reason=PlainReason.ASKED)
"""The plan of a request for which plain decoding was asked."""


class NoDrafter(BaseDrafter):
    """The drafter of an engine without one."""

    name = "none"

    def propose(
        self,
        requests: Sequence[Request],
        plans: Sequence[Plan],
        randomness: Randomness,
    ) -> list[Draft]:
        return [NO_DRAFT] * len(requests)


class NoPolicy(Policy):
    """The policy of an engine without a drafter: all rounds are plain."""

    name = "none"

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        return [ASKED] * len(requests)


class NoEviction:
    """The eviction of a cache that keeps all tokens."""

    def commit(self, row: int) -> None:
        """Do nothing."""

    def evict(self, row: int) -> None:
        """Do nothing."""

    def until_eviction(self, row: int) -> None:
        """None: there will be no eviction."""


@dataclass
class Parts:
    """The parts that rounds work with.

    Args:
        target: the model that verifies.
        cache: the target's cache.
        eviction: the cache again if it evicts, otherwise an object that does nothing.
        randomness: source of all draws.
        config: configuration of speculation.
        guarded: the drafter.
        policy: plans the rounds.
        tree: the config's tree, read from its file.
        rules: rules in use by name; a rule added here replaces that of the table.
        on_round: called after each round.
        on_forward: called before a model drafts, and before each forward pass of the target.
    """

    target: CausalLM
    cache: Cache
    eviction: Eviction
    randomness: Randomness
    config: SpeculativeConfig
    guarded: GuardedDrafter
    policy: Policy
    tree: Tree | str | None = None
    rules: dict[str, Verifier] = field(default_factory=dict)
    on_round: OnRound | None = None
    on_forward: Callable[[], None] | None = None

    @classmethod
    def of(
        cls,
        target: CausalLM,
        drafter: Drafter,
        policy: Policy,
        config: SpeculativeConfig,
        randomness: Randomness,
        size: tuple[int, int],
        compression: Compression,
    ) -> Parts:
        """The parts of an engine, with a cache for `size`: rows, and tokens a row.

        Raises:
            ConfigError: for a tree whose lower part would never be drafted.
            UnsupportedModelError: for a target whose cache cannot evict, if it should.
        """
        tree = resolve_tree(config.tree)
        check_depth(tree, config)
        rows, capacity = size
        if drafter.draws_trees or tree is not None:
            capacity += MOST_NODES
        cache, evicts = new_cache(target, rows, capacity, compression)
        guarded, eviction = GuardedDrafter(drafter, target, cache), evicts or NoEviction()
        parts = cls(target, cache, eviction, randomness, config, guarded, policy, tree)
        drafter.attach(cache)
        policy.attach(target, drafter, rows)
        return parts

    @property
    def drafter(self) -> Drafter:
        """The drafter itself, for reading its declarations."""
        return self.guarded.drafter

    @property
    def evicts(self) -> bool:
        """True if the cache evicts tokens."""
        return not isinstance(self.eviction, NoEviction)

    @property
    def exactness(self) -> Exactness:
        """Exactness of the target, unless drafter, named rule or cache change the distribution."""
        rule = self.config.rejection_sample_method
        promises = [self.drafter.exactness]
        if rule != AUTO and not isinstance(self.drafter, NoDrafter):
            promises.append(self.rule_named(rule).exactness)
        approximate = self.evicts or Exactness.APPROXIMATE in promises
        return Exactness.APPROXIMATE if approximate else self.target.exactness

    def propose(self, batch: Sequence[Running], plans: Sequence[Plan]) -> list[Draft]:
        """A draft for each request of a batch, by its plan."""
        drafts = any(plan.num_tokens for plan in plans) and not self.drafter.looks_up
        if drafts and self.on_forward is not None:
            self.on_forward()
        return self.guarded.propose(batch, plans, self.randomness)

    def forward(self, batch: Batch) -> ForwardOutput:
        """Run the target on a batch."""
        if self.on_forward is not None:
            self.on_forward()
        return self.target.forward(batch, self.cache)

    def rule_named(self, name: str) -> Verifier:
        if name not in self.rules:
            self.rules[name] = make_rule(name)
        return self.rules[name]
