"""Rehearsal: rounds on an arbitrary text before the first request, to warm up drafters and to time them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

from forerun.contracts import FILLER, Drafter
from forerun.core import Draft, Hints, PlainReason, Plan, Request, RoundTimes
from forerun.engine.guarded import GuardedDrafter
from forerun.engine.parts import TimedRound
from forerun.engine.requests import Running
from forerun.engine.scheduler import Scheduler
from forerun.engine.text import TextStream
from forerun.params import SamplingParams
from forerun.policies.base import BasePolicy
from forerun.randomness import Randomness

logger = logging.getLogger(__name__)

# Tokens of the text before the first round.
PROMPT = 16


class _Steps(BasePolicy):
    """A policy that plans given lengths, one after the other."""

    name = "rehearsal"

    def __init__(self, lengths: Sequence[int], member: int | None) -> None:
        self._left, self._member = list(lengths), member

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        return [Plan(self._left.pop(0), member=self._member, whole=True)] * len(requests)


class _Filler:
    """A drafter of arbitrary tokens, as many as planned; all else is the engine's own drafter's."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], _: Randomness
    ) -> list[Draft]:
        ids = zip(requests, plans, strict=True)
        return [Draft.chain(request.token_ids[: plan.num_tokens]) for request, plan in ids]


def rehearse(
    scheduler: Scheduler, room: int, lengths: Sequence[int], member: int | None = None
) -> list[RoundTimes]:
    """Run a round for each length of a draft, and leave nothing of them in caches and counters.

    Stores that drafters keep by namespace use a separate one.

    Args:
        scheduler: a scheduler without requests.
        room: most tokens of a request.
        lengths: lengths of the drafts.
        member: which of the drafter's members drafts; None if it drafts alone, FILLER for arbitrary
            tokens.

    Returns:
        Times of the rounds; fewer if the context is short or a drafter fails.
    """
    parts = scheduler.parts
    most = sum(lengths) + len(lengths)
    if parts.evicts or room < PROMPT + most + 1:
        return []
    ids = [1 + place % (parts.target.vocab_size - 1) for place in range(PROMPT)]
    # Keeps the text out of the stores that drafters keep by namespace.
    hints = Hints(namespace="\0rehearsal")
    params = SamplingParams(temperature=0.0, max_tokens=most + 1)
    request = Request(-1, ids, PROMPT, params, seed=0, hints=hints)
    running = Running(request, most + 1, TextStream(None, ()))
    times: list[RoundTimes] = []

    def note(done: TimedRound) -> None:
        if done.reasons != [PlainReason.FAILED]:
            times.append(done.times)

    before, past = (parts.policy, parts.guarded, parts.on_round), scheduler.past
    parts.policy, parts.on_round = _Steps(lengths, member), note
    if member == FILLER:
        parts.policy = _Steps(lengths, None)
        filler = cast(Drafter, _Filler(parts.drafter))
        parts.guarded = GuardedDrafter(filler, parts.target, parts.cache)
    try:
        scheduler.submit([running])
        for _ in lengths:
            scheduler.step()
    except Exception as error:
        logger.warning("drafts could not be timed beforehand (%r)", error)
    parts.policy, parts.guarded, parts.on_round = before
    try:
        scheduler.drop([running])
    except Exception as error:
        logger.warning("a drafter cannot forget what was rehearsed (%r)", error)
    scheduler.forget()
    scheduler.past = past
    return times
