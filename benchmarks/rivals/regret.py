"""Seconds that policies lose against the choices that hindsight makes, on recorded workloads."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.rivals.budgets import AdaptiveVerification, Algorithm1
from benchmarks.rivals.costs import StageCosts
from benchmarks.rivals.engine_policies import EnginePolicy, auto_policy
from benchmarks.rivals.fit import costs_of, plain_seconds
from benchmarks.rivals.hindsight import Hindsight
from benchmarks.rivals.lengths import Autotune, Goodput, MovingAverage
from benchmarks.rivals.records import RecordedOutput, Records
from benchmarks.rivals.replay import Fixed, ReplayPolicy, replay
from forerun.costs.rounds import Costs
from forerun.policies import make_policy

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
NO_DRAFTER, ALL = "no drafter", "all drafters"


@dataclass(frozen=True)
class Workload:
    """Recorded outputs of some candidates, one text each.

    Args:
        name: of the records.
        texts: each by candidate, in the order in which they are served.
        costs: by candidate, on one scale.
    """

    name: str
    texts: Sequence[Mapping[str, RecordedOutput]]
    costs: Mapping[str, StageCosts]

    @classmethod
    def of(cls, name: str, records: Records) -> Workload:
        """The chains among the records, on the texts that all of them have.

        Raises:
            ConfigError: where a candidate was not timed.
        """
        names = list(dict.fromkeys(candidate for candidate, _ in records.outputs))
        names = [name for name in names if "tree of" not in name]
        outputs = {one: {o.prompt_id: o for o in records.of(one)} for one in names}
        shared = [p for p in outputs[names[0]] if all(p in outputs[one] for one in names)]
        texts = [{one: outputs[one][prompt] for one in names} for prompt in shared]
        costs = {one: costs_of(records, one) for one in names}
        return cls(name, texts, common_scale(costs, texts))

    @property
    def longest(self) -> Mapping[str, int]:
        """The longest draft of each candidate."""
        return {
            name: max(max(text[name].depths) for text in self.texts) or 1 for name in self.costs
        }

    def in_order(self, order: int) -> Workload:
        """The same with its texts in another order; 0 is the one that there is."""
        texts = list(self.texts)
        if order:
            random.Random(order).shuffle(texts)
        return replace(self, texts=texts)

    @property
    def best(self) -> float:
        """Seconds of the choices that hindsight makes, over all candidates and lengths; an engine with one
        drafter may pay less for its plain rounds than one with all of them."""
        alone = [{name: costs} for name, costs in self.costs.items()]
        return min(map(self._best_with, [self.costs, *alone]))

    def _best_with(self, costs: Mapping[str, StageCosts]) -> float:
        longest = self.longest
        lengths = {name: tuple(range(1, longest[name] + 1)) for name in costs}
        texts = [{name: text[name] for name in costs} for text in self.texts]
        return sum(replay([t], costs, Hindsight(t, costs, lengths)).seconds for t in texts)


def common_scale(
    costs: Mapping[str, StageCosts], texts: Sequence[Mapping[str, RecordedOutput]]
) -> dict[str, StageCosts]:
    """Costs of several candidates as of one machine at one time: plain decoding of the texts takes the
    same in all."""
    firsts = [next(iter(text.values())) for text in texts]
    plain = {
        name: sum(plain_seconds([text], one) for text in firsts) for name, one in costs.items()
    }
    usual = statistics.median(plain.values())
    return {name: scaled(one, usual / plain[name]) for name, one in costs.items()}


@dataclass(frozen=True)
class _Scaled:
    """Costs times a factor."""

    costs: Costs
    factor: float

    def seconds(self, num_tokens: Any, batch_size: Any, context: Any) -> Any:
        return self.factor * self.costs.seconds(num_tokens, batch_size, context)


def scaled(costs: StageCosts, factor: float) -> StageCosts:
    """The costs on a machine that is slower by a factor."""
    return StageCosts(
        draft=_Scaled(costs.draft, factor),
        target=_Scaled(costs.target, factor),
        plain=_Scaled(costs.plain, factor),
        verify=_Scaled(costs.verify, factor),
        host=_Scaled(costs.host, factor),
        first_draft=costs.first_draft * factor,
        prefill=(costs.prefill[0] * factor, costs.prefill[1] * factor),
        plain_prefill=costs.plain_prefill,
    )


def rivals(workload: Workload, candidate: str) -> list[ReplayPolicy]:
    """New policies for one candidate of a workload."""
    longest, costs = workload.longest[candidate], workload.costs[candidate]
    fixed = [Fixed(candidate, length) for length in LENGTHS if length <= longest]
    return [
        *fixed,
        MovingAverage(candidate, longest),
        Goodput(candidate, longest, costs),
        Autotune(candidate, longest),
        AdaptiveVerification(candidate, longest, costs),
        Algorithm1(candidate, longest, costs),
        EnginePolicy(make_policy("adaptive", min(4, longest)), candidate),
        EnginePolicy(auto_policy(costs, longest), candidate),
    ]


def of_all(workload: Workload) -> ReplayPolicy:
    """Policy `auto` for all candidates of a workload together."""
    costs = next(iter(workload.costs.values()))
    policy = auto_policy(costs, max(workload.longest.values()))
    return EnginePolicy(policy, *workload.costs)


def seconds_of(workload: Workload, policy: ReplayPolicy, *candidates: str) -> float:
    """What all texts take, one after the other; the policy learns from text to text."""
    costs = {name: workload.costs[name] for name in candidates}
    texts = ({name: text[name] for name in candidates} for text in workload.texts)
    return sum(replay([text], costs, policy).seconds for text in texts)


def regrets(workload: Workload, orders: int = 1) -> dict[str, dict[str, float]]:
    """Seconds lost by candidate and policy, as a share of what hindsight takes: the mean over so many
    orders of the texts, of which the first is that of the records. In each, policies begin anew."""
    best = workload.best
    lost: dict[str, dict[str, float]] = {}

    def add(policy: ReplayPolicy, made: Workload, kind: str, *candidates: str) -> None:
        known = lost.setdefault(kind, {})
        name = policy.name.removeprefix(f"{', '.join(candidates)}, ")
        share = seconds_of(made, policy, *candidates) / best - 1.0
        known[name] = known.get(name, 0.0) + share / orders

    for order in range(orders):
        made = workload.in_order(order)
        add(Fixed(next(iter(made.costs)), 0), made, NO_DRAFTER, next(iter(made.costs)))
        for candidate in made.costs:
            for policy in rivals(made, candidate):
                add(policy, made, candidate, candidate)
        if len(made.costs) > 1:
            add(of_all(made), made, ALL, *made.costs)
    return lost
