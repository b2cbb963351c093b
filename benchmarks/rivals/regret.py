"""Seconds that policies lose against the choices that hindsight makes, on recorded workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.rivals.budgets import AdaptiveVerification, Algorithm1
from benchmarks.rivals.lengths import Autotune, Goodput, MovingAverage
from forerun.policies import POLICIES, make_policy
from forerun.tuning.costs import RoundCosts
from forerun.tuning.engine_policies import EnginePolicy
from forerun.tuning.hindsight import Hindsight
from forerun.tuning.prediction import common_scale, costs_of
from forerun.tuning.records import Output, Records
from forerun.tuning.replay import Fixed, ReplayPolicy, replay

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)


@dataclass(frozen=True)
class Workload:
    """Recorded outputs of some candidates, one text each.

    Args:
        name: of the records.
        texts: each by candidate, in the order in which they are served.
        costs: by candidate, on one scale.
    """

    name: str
    texts: Sequence[Mapping[str, Output]]
    costs: Mapping[str, RoundCosts]

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

    @property
    def plain(self) -> float:
        """Seconds of rounds without drafts."""
        first = next(iter(self.costs))
        return seconds_of(self, Fixed(first, 0), first)

    @property
    def best(self) -> float:
        """Seconds of the choices that hindsight makes, over all candidates and lengths; an engine with one
        drafter may pay less for its plain rounds than one with all of them."""
        alone = [{name: costs} for name, costs in self.costs.items()]
        return min(map(self._best_with, [self.costs, *alone]))

    def _best_with(self, costs: Mapping[str, RoundCosts]) -> float:
        longest = self.longest
        lengths = {name: tuple(range(1, longest[name] + 1)) for name in costs}
        texts = [{name: text[name] for name in costs} for text in self.texts]
        return sum(replay([t], costs, Hindsight(t, costs, lengths)).seconds for t in texts)


def rivals(workload: Workload, candidate: str) -> list[ReplayPolicy]:
    """New policies for one candidate of a workload."""
    longest, costs = workload.longest[candidate], workload.costs[candidate]
    fixed = [Fixed(candidate, length) for length in LENGTHS if length <= longest]
    own = [name for name in POLICIES.names() if name != "fixed"]
    return [
        *fixed,
        MovingAverage(candidate, longest),
        Goodput(candidate, longest, costs),
        Autotune(candidate, longest),
        AdaptiveVerification(candidate, longest, costs),
        Algorithm1(candidate, longest, costs),
        *(EnginePolicy(make_policy(name, min(4, longest)), candidate) for name in own),
    ]


def seconds_of(workload: Workload, policy: ReplayPolicy, candidate: str) -> float:
    """What all texts take, one after the other; the policy learns from text to text."""
    costs = {candidate: workload.costs[candidate]}
    texts = ({candidate: text[candidate]} for text in workload.texts)
    return sum(replay([text], costs, policy).seconds for text in texts)


def regrets(workload: Workload) -> dict[str, float]:
    """Seconds lost by policy, as a share of what hindsight takes."""
    best = workload.best
    lost = {"plain": workload.plain / best - 1.0}
    for candidate in workload.costs:
        for policy in rivals(workload, candidate):
            lost[policy.name] = seconds_of(workload, policy, candidate) / best - 1.0
    return lost
