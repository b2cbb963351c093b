"""Policies that choose a length before they draft: SGLang's, TurboSpec's, ik_llama.cpp's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.rivals.costs import Seconds, StageCosts
from benchmarks.rivals.replay import Outcome, ReplayPolicy, View
from benchmarks.rivals.rounds import PLAIN, DraftChoice


def chosen(candidate: str, num_tokens: int, count: int) -> list[DraftChoice]:
    """The same for all requests."""
    return [DraftChoice(candidate, num_tokens) if num_tokens else PLAIN] * count


# SGLang 0.5.23, python/sglang/srt/speculative/adaptive_spec_params.py: steps by batch size, and how far
# below a step the average has to fall.
STEPS = {1: ((1, 3, 5, 7), -0.25), 8: ((0, 1, 3), 0.0), 32: ((0, 1), 0.0), 64: ((0,), 0.0)}
EMA, EVERY, WARM_UP = 0.2, 5, 10


@dataclass
class _Slot:
    """One batch size: its step, and the moving average of accepted tokens."""

    steps: tuple[int, ...]
    down: float
    at: int = 0
    average: float = 0.0
    rounds: int = 0

    def __post_init__(self) -> None:
        self.at = len(self.steps) // 2
        self.average = float(self.steps[self.at] - 1)

    def observe(self, accepted: float) -> None:
        if self.steps[self.at] > 0:
            self.average += EMA * (accepted - self.average)
        self.rounds += 1
        if self.rounds > WARM_UP and (self.rounds - WARM_UP) % EVERY == 0:
            self._move()

    def _move(self) -> None:
        if self.steps[self.at] == 0:
            self.at = min(self.at + 1, len(self.steps) - 1)
            if self.steps[self.at] and self.average < 0:
                self.average = float(self.steps[self.at] - 1)
            return
        before = self.at
        while self.at > 0:
            lower = self.steps[self.at - 1]
            if self.average > (0.5 if lower == 0 else lower - 0.5) + self.down:
                break
            self.at -= 1
        while self.at >= before and self.at < len(self.steps) - 1:
            if self.average <= self.steps[self.at] - 0.5:
                break
            self.at += 1


class MovingAverage(ReplayPolicy):
    """SGLang: steps follow a moving average of accepted tokens, by batch size."""

    def __init__(self, candidate: str, longest: int) -> None:
        self.candidate, self.name = candidate, f"{candidate}, SGLang's moving average"
        self._slots = {
            size: _Slot(tuple(min(step, longest) for step in steps), down)
            for size, (steps, down) in STEPS.items()
        }

    def choose(self, views: Sequence[View]) -> list[DraftChoice]:
        slot = self._slot(len(views))
        return chosen(self.candidate, slot.steps[slot.at], len(views))

    def observe(self, outcomes: Sequence[Outcome], seconds: Seconds) -> None:
        accepted = sum(one.accepted for one in outcomes) / len(outcomes)
        self._slot(len(outcomes)).observe(accepted)

    def _slot(self, batch_size: int) -> _Slot:
        return self._slots[min(self._slots, key=lambda size: abs(size - batch_size))]


class Goodput(ReplayPolicy):
    """TurboSpec (arXiv 2406.14066): the length with most expected tokens a second, by profiled times and a
    moving average of acceptance. Without drafts the average stays as it is."""

    def __init__(self, candidate: str, longest: int, costs: StageCosts) -> None:
        self.candidate, self.longest, self.costs = candidate, longest, costs
        self.name = f"{candidate}, TurboSpec's goodput"
        self.acceptance = 0.7

    def choose(self, views: Sequence[View]) -> list[DraftChoice]:
        context = sum(view.context for view in views) / len(views)

        def goodput(length: int) -> float:
            tokens = sum(self.acceptance**depth for depth in range(length + 1))
            costs = self.costs.round(length, len(views), context, drafts=length > 0)
            return float(tokens / costs.total)

        best = max(range(self.longest + 1), key=goodput)
        return chosen(self.candidate, best, len(views))

    def observe(self, outcomes: Sequence[Outcome], seconds: Seconds) -> None:
        accepted = sum(one.accepted for one in outcomes)
        # A draft is tested up to its first rejected token.
        tested = sum(min(one.accepted + 1, one.verified) for one in outcomes)
        if tested:
            self.acceptance += 0.1 * (min(accepted / tested, 0.999) - self.acceptance)


# ik_llama.cpp, common/spec-tuner.h.
EXPLORE, STEP_EMA, DROP, RESET_AFTER, COOLDOWN = 0.15, 0.05, 0.3, 30, 50


@dataclass
class _Arm:
    mean: float = 0.0
    count: int = 0


@dataclass
class Autotune(ReplayPolicy):
    """ik_llama.cpp: an epsilon-greedy bandit over lengths from 1 on, rewarded by tokens a second of each
    round; it forgets all where they have fallen for long."""

    candidate: str
    longest: int
    seed: int = 0
    arms: list[_Arm] = field(default_factory=list)
    _best: int = 0
    _at: int = 0
    _low: int = 0
    _average: float = 0.0
    _cooldown: int = 0

    def __post_init__(self) -> None:
        self.name = f"{self.candidate}, ik_llama.cpp's autotune"
        self._source = random.Random(self.seed)
        self._forget()
        self._cooldown = 0

    def choose(self, views: Sequence[View]) -> list[DraftChoice]:
        explores = self._source.random() < EXPLORE
        self._at = self._source.randrange(self.longest) if explores else self._best
        return chosen(self.candidate, self._at + 1, len(views))

    def observe(self, outcomes: Sequence[Outcome], seconds: Seconds) -> None:
        rate = sum(one.emitted for one in outcomes) / seconds.total
        arm = self.arms[self._at]
        arm.count += 1
        arm.mean += (rate - arm.mean) / arm.count
        seen = [at for at, one in enumerate(self.arms) if one.count]
        self._best = max(seen, key=lambda at: self.arms[at].mean)
        if self._average and not self._cooldown:
            self._low = self._low + 1 if rate < (1 - DROP) * self._average else 0
            if self._low >= RESET_AFTER:
                self._forget()
                return
        self._cooldown = max(self._cooldown - 1, 0)
        self._average += (STEP_EMA if self._average else 1.0) * (rate - self._average)

    def _forget(self) -> None:
        self.arms = [_Arm() for _ in range(self.longest)]
        self._best, self._at, self._low = 0, 0, 0
        self._average, self._cooldown = 0.0, COOLDOWN
