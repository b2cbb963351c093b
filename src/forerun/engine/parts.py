"""The parts that the rounds of an engine work with, and the hooks that watch rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forerun.compression import Compression
from forerun.contracts import Cache, CausalLM, Drafter, Evicts, Policy, Verifier
from forerun.core import (
    MOST_NODES,
    Draft,
    Exactness,
    PlainReason,
    Plan,
    Request,
    RoundTimes,
    Tree,
    Verdict,
)
from forerun.engine.compatibility import check_depth, new_cache
from forerun.engine.config import SpeculativeConfig
from forerun.engine.guarded import GuardedDrafter
from forerun.randomness import Randomness
from forerun.trees.plans import resolve_tree
from forerun.verification import AUTO, make_rule
from forerun.verification.explain import Explanation

OnRound = Callable[[Request, Draft, Verdict], None]
"""A hook that sees the draft and the verdict of a request in a round, before the request is extended."""
OnExplained = Callable[[Request, Draft, Verdict, Explanation | None], None]
"""A hook like `OnRound` that also sees the tests behind the verdict; None for a rule not of forerun."""


@dataclass(frozen=True)
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


OnTimed = Callable[[TimedRound], None]
"""A hook that sees a round after it is over and counted."""


@dataclass
class Parts:
    """The parts that rounds work with.

    Args:
        target: the model that verifies.
        cache: the target's cache.
        evicts: the cache again if it evicts.
        randomness: source of all draws.
        config: configuration of speculation.
        guarded: the drafter.
        policy: None decodes plainly, as does a missing drafter.
        tree: the config's tree, read from its file.
        rules: rules in use by name; a rule added here replaces that of the table.
        on_round, on_explained, on_timed: hooks.
    """

    target: CausalLM
    cache: Cache
    evicts: Evicts | None
    randomness: Randomness
    config: SpeculativeConfig
    guarded: GuardedDrafter | None = None
    policy: Policy | None = None
    tree: Tree | str | None = None
    rules: dict[str, Verifier] = field(default_factory=dict)
    on_round: OnRound | None = None
    on_explained: OnExplained | None = None
    on_timed: OnTimed | None = None

    @classmethod
    def of(
        cls,
        target: CausalLM,
        drafter: Drafter | None,
        policy: Policy | None,
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
        if drafter is not None and (drafter.draws_trees or tree is not None):
            capacity += MOST_NODES
        cache, evicts = new_cache(target, rows, capacity, compression)
        guarded = None if drafter is None else GuardedDrafter(drafter, target, cache)
        parts = cls(target, cache, evicts, randomness, config, guarded, policy, tree)
        if drafter is not None and policy is not None:
            drafter.attach(cache)
            policy.attach(target, drafter, rows)
        return parts

    @property
    def drafter(self) -> Drafter | None:
        """The drafter itself, for reading its declarations."""
        return None if self.guarded is None else self.guarded.drafter

    @property
    def exactness(self) -> Exactness:
        """Exactness of the target, unless drafter, named rule or cache change the distribution."""
        methods = [] if self.evicts is None else [Exactness.APPROXIMATE]
        if self.drafter is not None:
            methods.append(self.drafter.exactness)
            if self.config.rejection_sample_method != AUTO:
                methods.append(self.rule_named(self.config.rejection_sample_method).exactness)
        return Exactness.APPROXIMATE if Exactness.APPROXIMATE in methods else self.target.exactness

    def rule_named(self, name: str) -> Verifier:
        if name not in self.rules:
            self.rules[name] = make_rule(name)
        return self.rules[name]
