"""Stops speculating where it loses, and looks again later."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from forerun.contracts import Policy
from forerun.core import Draft, PlainReason, Plan, Request, Verdict

# Drafting rounds before the first decision, plain ones before the first probe, drafting ones of a probe.
MIN_ROUNDS, PAUSE, PROBE_ROUNDS = 24, 32, 6
# Below this share of the longest path four drafted tokens do not pay where a drafting round takes 2.2
# plain ones: a careful guess for the first decision, before plain rounds of this run have been timed.
FIRST_BREAK_EVEN = 0.3
# That many plain rounds are run on purpose, once so many drafting ones have been timed.
PLAIN_ROUNDS, ROUNDS_BEFORE_PLAIN = 2, 8
_TIMED, _PAUSED = Plan(0, reason=PlainReason.TIMED), Plan(0, reason=PlainReason.PAUSED)


class _Drafted(NamedTuple):
    """One draft: its nodes, its depth, and how many tokens of it were accepted."""

    nodes: int
    depth: int
    accepted: int


@dataclass
class _Watch:
    """What the monitor knows of one request: its newest drafts, how many of them the next decision
    takes, the rounds left of its pause, and the length of the next one."""

    drafts: list[_Drafted] = field(default_factory=list)
    rounds: int = MIN_ROUNDS
    paused_for: int = 0
    pause: int = PAUSE

    def observe(self, draft: Draft, verdict: Verdict, break_even: float | None) -> None:
        """Note the outcome of a draft, and pause where the newest were not worth their time."""
        newest = _Drafted(len(draft), draft.tree.depth, verdict.num_accepted)
        self.drafts = [*self.drafts, newest][-self.rounds :]
        if len(self.drafts) < self.rounds:
            return
        accepted = sum(draft.accepted for draft in self.drafts)
        if break_even is None:
            # A tree has many nodes on a level, of which at most one is accepted.
            pays = accepted >= FIRST_BREAK_EVEN * sum(draft.depth for draft in self.drafts)
        else:
            pays = accepted >= break_even * sum(draft.nodes for draft in self.drafts)
        if pays:
            self.rounds, self.pause = MIN_ROUNDS, PAUSE
        else:
            self.drafts, self.rounds = [], PROBE_ROUNDS
            self.paused_for, self.pause = self.pause, 2 * self.pause


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

    After `MIN_ROUNDS` drafting rounds, a request whose acceptance over its last ones lies below
    break-even decodes plainly for `PAUSE` rounds, then probes for a few rounds; each failed probe
    doubles the pause. Break-even follows from the measured times of both kinds of round, for the
    batch size at hand; a few plain rounds are run early on to have them.

    Args:
        policy: what plans the lengths while speculation is worth it.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        # By batch size, and by request.
        self._times: defaultdict[int, _RoundTimes] = defaultdict(_RoundTimes)
        self._watches: defaultdict[int, _Watch] = defaultdict(_Watch)

    def break_even(self, batch_size: int) -> float | None:
        """The acceptance below which speculation stops; None before it has been measured, when
        `FIRST_BREAK_EVEN` of the longest path is asked for."""
        return self._times[batch_size].break_even()

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        if self._times[len(requests)].wants_plain:
            return [_TIMED] * len(requests)
        return [
            _PAUSED if self._watches[request.request_id].paused_for else plan
            for request, plan in zip(requests, self.policy.plan(requests), strict=True)
        ]

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        seconds: float,
    ) -> None:
        self.policy.observe(requests, drafts, verdicts, seconds)
        self._times[len(requests)].observe(drafts, seconds)
        break_even = self.break_even(len(requests))
        for request, draft, verdict in zip(requests, drafts, verdicts, strict=True):
            watch = self._watches[request.request_id]
            if watch.paused_for:
                watch.paused_for -= 1
            elif len(draft):
                watch.observe(draft, verdict, break_even)

    def release(self, request: Request) -> None:
        self.policy.release(request)
        self._watches.pop(request.request_id, None)
