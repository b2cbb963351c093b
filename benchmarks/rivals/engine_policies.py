"""The engine's own policies in a replay: the code that ships is what is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from benchmarks.rivals.costs import Seconds, StageCosts
from benchmarks.rivals.replay import Outcome, ReplayPolicy, View
from benchmarks.rivals.rounds import PLAIN, DraftChoice
from forerun.contracts import CausalLM, Drafter, Policy
from forerun.core import NO_DRAFT, Draft, Origin, Plan, Request, RoundTimes, Verdict
from forerun.costs.table import CostTable
from forerun.drafters import DRAFTERS
from forerun.errors import UnknownNameError
from forerun.params import SamplingParams
from forerun.policies.auto import AutoOptions, AutoPolicy
from forerun.policies.calibration import TOKENS

# What stands for a rejected token, of which only the number is recorded.
_REJECTED = 0


class RecordedDrafter:
    """Stands for a drafter of recorded rounds: answers what a policy may ask before it plans.

    Args:
        name: of the candidate.
        members: candidates that a plan may choose among, in place of one.
    """

    acceptance = None

    def __init__(self, name: str, members: Sequence[RecordedDrafter] = ()) -> None:
        self.name, self.members = name, tuple(members)
        self.looks_up = _looks_up(name)
        self._views: Mapping[int, View] = {}
        self._started: set[int] = set()

    def show(self, views: Mapping[int, View]) -> None:
        """Take in what is known of the requests of a round, by their ids."""
        self._views = views
        for member in self.members:
            member.show(views)

    def start(self, request: Request) -> None:
        """Note that it has drafted for a request: its prompt is read."""
        self._started.add(request.request_id)

    def confidence(self, request: Request) -> float:
        """As it was recorded at this position."""
        if self.members:
            return max(member.confidence(request) for member in self.members)
        return self._views[request.request_id].confidences[self.name]

    def cost_share(self, request: Request) -> float | None:
        """The recorded costs say more."""
        return None

    def pending(self, request: Request) -> int:
        """All of a text before its first draft; the costs count nothing else."""
        if self.members:
            return max(member.pending(request) for member in self.members)
        return 1 if self.looks_up or request.request_id in self._started else len(request)

    def release(self, request: Request) -> None:
        """Forget a request."""
        self._started.discard(request.request_id)
        for member in self.members:
            member.release(request)


def _looks_up(candidate: str) -> bool:
    """Whether a candidate's method, the first word of its name, looks its tokens up."""
    try:
        return bool(DRAFTERS.find(candidate.split(" ", 1)[0]).looks_up)
    except UnknownNameError:
        return False


class EnginePolicy(ReplayPolicy):
    """Asks a policy of the engine, for one candidate or for several that it chooses among.

    Args:
        policy: as the engine would have it, not attached to anything.
        candidates: what may draft.
    """

    def __init__(self, policy: Policy, *candidates: str) -> None:
        self.policy, self.candidates = policy, candidates
        self.name = f"{', '.join(candidates)}, {policy.name}"
        alone = [RecordedDrafter(name) for name in candidates]
        self.drafter = alone[0] if len(alone) == 1 else RecordedDrafter("all", alone)
        # No model runs, and policies that time one are told its times.
        self.policy.attach(cast(CausalLM, None), cast(Drafter, self.drafter), 1)
        self._requests: dict[int, Request] = {}
        self._ids = 0

    def choose(self, views: Sequence[View]) -> list[DraftChoice]:
        requests = [self._request(view) for view in views]
        self.drafter.show(
            {request.request_id: view for request, view in zip(requests, views, strict=True)}
        )
        return list(map(self._choice, self.policy.plan(requests)))

    def observe(self, outcomes: Sequence[Outcome], seconds: Seconds) -> None:
        requests = [self._requests[outcome.offer.view.request] for outcome in outcomes]
        drafts, verdicts = [], []
        for request, outcome in zip(requests, outcomes, strict=True):
            # The engine has committed the round by then.
            view = outcome.offer.view
            new = view.tokens.first(view.context + outcome.emitted)[view.context :]
            request.extend(new)
            drafts.append(_draft(outcome, new))
            verdicts.append(_verdict(outcome, new))
            for drafter in self.drafter.members or (self.drafter,):
                if drafter.name == outcome.offer.choice.candidate:
                    drafter.start(request)
        times = RoundTimes(seconds.draft, seconds.target, seconds.verify)
        self.policy.observe(requests, drafts, verdicts, times)

    def release(self, view: View) -> None:
        request = self._requests.pop(view.request)
        self.policy.release(request)
        self.drafter.release(request)

    def _choice(self, plan: Plan) -> DraftChoice:
        if not plan.num_tokens:
            return PLAIN
        return DraftChoice(self.candidates[plan.member or 0], plan.num_tokens)

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


def auto_policy(costs: StageCosts, longest: int) -> AutoPolicy:
    """Policy `auto` as an engine begins with it: it knows the times of the target's forwards, which it
    takes when a model is first loaded, and has to learn those of drafts and what is accepted. Its own
    time is not counted, as that of other policies is not."""
    policy = AutoPolicy(longest, AutoOptions(calibrate=False))
    rows = [(n, 1, 0, costs.target.seconds(n, 1, 0)) for n in TOKENS]
    policy.know(CostTable.from_rows(rows))
    policy.clock = lambda: 0.0
    return policy


def _draft(outcome: Outcome, new: Sequence[int]) -> Draft:
    """A chain as long as the draft: what was accepted, then what was not."""
    if not outcome.verified:
        return NO_DRAFT
    accepted = list(new[: outcome.accepted])
    return Draft.chain([*accepted, *[_REJECTED] * (outcome.verified - len(accepted))])


def _verdict(outcome: Outcome, new: Sequence[int]) -> Verdict:
    last = Origin.RECOVERED if outcome.accepted < outcome.verified else Origin.BONUS
    origins = [Origin.ACCEPTED] * outcome.accepted + [last if outcome.verified else Origin.PLAIN]
    return Verdict(tuple(range(outcome.accepted)), tuple(new), tuple(origins[: len(new)]))
