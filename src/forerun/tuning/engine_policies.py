"""The engine's own policies in a replay: the code that ships is what is compared."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.contracts import Policy
from forerun.core import NO_DRAFT, Draft, Origin, Request, RoundTimes, Verdict
from forerun.params import SamplingParams
from forerun.tuning.costs import Seconds
from forerun.tuning.replay import PLAIN, Choice, Outcome, ReplayPolicy, View

# What stands for a rejected token, of which only the number is recorded.
_REJECTED = 0


class EnginePolicy(ReplayPolicy):
    """Asks a policy of the engine, for one candidate.

    Args:
        policy: as the engine would have it.
        candidate: what drafts.
    """

    def __init__(self, policy: Policy, candidate: str) -> None:
        self.policy, self.candidate = policy, candidate
        self.name = f"{candidate}, {policy.name}"
        self._requests: dict[int, Request] = {}
        self._ids = 0

    def choose(self, views: Sequence[View]) -> list[Choice]:
        plans = self.policy.plan([self._request(view) for view in views])
        return [
            Choice(self.candidate, plan.num_tokens) if plan.num_tokens else PLAIN for plan in plans
        ]

    def observe(self, outcomes: Sequence[Outcome], seconds: Seconds) -> None:
        requests = [self._requests[one.offer.view.request] for one in outcomes]
        drafts, verdicts = [], []
        for request, one in zip(requests, outcomes, strict=True):
            # The engine has committed the round by then.
            view = one.offer.view
            new = view.tokens.first(view.context + one.emitted)[view.context :]
            request.extend(new)
            drafts.append(_draft(one, new))
            verdicts.append(_verdict(one, new))
        times = RoundTimes(seconds.draft, seconds.target, seconds.verify)
        self.policy.observe(requests, drafts, verdicts, times)

    def release(self, view: View) -> None:
        self.policy.release(self._requests.pop(view.request))

    def _request(self, view: View) -> Request:
        if view.request not in self._requests:
            self._ids += 1
            left = view.room + view.position
            params = SamplingParams(max_tokens=left)
            ids = view.token_ids
            self._requests[view.request] = Request(
                self._ids, ids, view.prompt_tokens, params, seed=0, row=view.request
            )
        return self._requests[view.request]


def _draft(one: Outcome, new: Sequence[int]) -> Draft:
    """A chain as long as the draft: what was accepted, then what was not."""
    if not one.verified:
        return NO_DRAFT
    accepted = list(new[: one.accepted])
    return Draft.chain([*accepted, *[_REJECTED] * (one.verified - len(accepted))])


def _verdict(one: Outcome, new: Sequence[int]) -> Verdict:
    last = Origin.RECOVERED if one.accepted < one.verified else Origin.BONUS
    origins = [Origin.ACCEPTED] * one.accepted + [last if one.verified else Origin.PLAIN]
    return Verdict(tuple(range(one.accepted)), tuple(new), tuple(origins[: len(new)]))
