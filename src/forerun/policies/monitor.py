"""Stops speculating where it loses, and looks again later."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from forerun.contracts import Policy
from forerun.core import Draft, Plan, Request, Verdict

# Below this share of the longest path four drafted tokens do not pay where a drafting round takes 2.2
# plain ones: a careful guess for the first decision, before plain rounds of this run have been timed.
FIRST_BREAK_EVEN = 0.3
# That many plain rounds are run on purpose, once so many drafting ones have been timed.
PLAIN_ROUNDS, ROUNDS_BEFORE_PLAIN = 2, 8


class _Drafted(NamedTuple):
    """One draft: its nodes, its depth, and how many tokens of it were accepted."""

    nodes: int
    depth: int
    accepted: int


@dataclass
class _Watch:
    """What the monitor knows of one request."""

    recent: deque[_Drafted]
    pause: int
    paused_for: int = 0


@dataclass
class _RoundTimes:
    """Seconds a round for a batch size, and the mean of drafted tokens over all its requests.

    Medians: a round in which a prompt went through the draft model says nothing about the next.
    """

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=15))
    drafting: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=15))

    def observe(self, drafts: Sequence[Draft], seconds: float) -> None:
        drafted = [len(draft) for draft in drafts]
        if not any(drafted):
            self.plain.append(seconds)
        else:
            self.drafting.append((seconds, sum(drafted) / len(drafted)))

    @property
    def wants_plain(self) -> bool:
        """Whether drafting rounds have been timed and have nothing to be compared with."""
        return len(self.plain) < PLAIN_ROUNDS and len(self.drafting) >= ROUNDS_BEFORE_PLAIN

    def break_even(self) -> float | None:
        """The acceptance at which a drafting round is worth its time: as many accepted tokens as
        the plain rounds that it takes longer, over the tokens drafted. None before both are timed."""
        if not self.plain or not self.drafting:
            return None
        drafting = median(seconds for seconds, _ in self.drafting)
        drafted = median(count for _, count in self.drafting)
        return max(0.0, (drafting / median(self.plain) - 1.0) / drafted)


class Monitor:
    """Wraps a policy and plans plain rounds for requests whose drafts are not worth their time.

    After `min_rounds` drafting rounds, a request whose acceptance over its last `min_rounds` lies
    below break-even decodes plainly for `pause` rounds, then probes for a few rounds; each failed
    probe doubles the pause. Break-even follows from the measured times of both kinds of round, for
    the batch size at hand; a few plain rounds are run early on to have them.

    Args:
        policy: what plans the lengths while speculation is worth it.
        min_rounds: drafting rounds before the first decision.
        pause: plain rounds before the first probe.
        probe_rounds: drafting rounds of a probe.
        break_even: fixes the acceptance below which to stop; None measures it.
    """

    def __init__(
        self,
        policy: Policy,
        min_rounds: int = 24,
        pause: int = 32,
        probe_rounds: int = 6,
        break_even: float | None = None,
    ) -> None:
        self.policy = policy
        self.name = policy.name
        self.min_rounds, self.pause, self.probe_rounds = min_rounds, pause, probe_rounds
        self.fixed_break_even = break_even
        self._times: dict[int, _RoundTimes] = {}
        self._watches: dict[int, _Watch] = {}

    def break_even(self, batch_size: int) -> float | None:
        """The acceptance below which speculation stops; None before it has been measured, when
        `FIRST_BREAK_EVEN` of the longest path is asked for."""
        fixed = self.fixed_break_even
        return self._times_of(batch_size).break_even() if fixed is None else fixed

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        if self.fixed_break_even is None and self._times_of(len(requests)).wants_plain:
            return [Plan(0)] * len(requests)
        plans = self.policy.plan(requests)
        return [
            Plan(0) if self._watch_of(request).paused_for else plan
            for request, plan in zip(requests, plans, strict=True)
        ]

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        seconds: float,
    ) -> None:
        self.policy.observe(requests, drafts, verdicts, seconds)
        self._times_of(len(requests)).observe(drafts, seconds)
        for request, draft, verdict in zip(requests, drafts, verdicts, strict=True):
            watch = self._watch_of(request)
            if watch.paused_for:
                watch.paused_for -= 1
            elif len(draft):
                drafted = _Drafted(len(draft), draft.tree.depth, verdict.num_accepted)
                watch.recent.append(drafted)
                self._judge(watch, self.break_even(len(requests)))

    def release(self, request: Request) -> None:
        self.policy.release(request)
        self._watches.pop(request.request_id, None)

    def _judge(self, watch: _Watch, break_even: float | None) -> None:
        if len(watch.recent) < (watch.recent.maxlen or 0):
            return
        # A tree has many nodes on a level, of which at most one is accepted.
        drafted = sum(draft.depth if break_even is None else draft.nodes for draft in watch.recent)
        accepted = sum(draft.accepted for draft in watch.recent)
        if accepted / drafted >= (FIRST_BREAK_EVEN if break_even is None else break_even):
            if watch.recent.maxlen != self.min_rounds:  # a probe that went well
                watch.recent = deque(watch.recent, maxlen=self.min_rounds)
                watch.pause = self.pause
            return
        watch.paused_for = watch.pause
        watch.pause *= 2
        watch.recent = deque(maxlen=self.probe_rounds)

    def _times_of(self, batch_size: int) -> _RoundTimes:
        return self._times.setdefault(batch_size, _RoundTimes())

    def _watch_of(self, request: Request) -> _Watch:
        fresh = _Watch(deque(maxlen=self.min_rounds), self.pause)
        return self._watches.setdefault(request.request_id, fresh)
