"""Rounds of a policy in a world whose costs and acceptance are known, in simulated seconds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

from forerun.contracts import Policy
from forerun.core import Draft, Origin, Plan, Request, RoundTimes, Verdict
from forerun.params import SamplingParams
from forerun.testing import ToyModel

VOCABULARY = 5
_numbers = itertools.count()


@dataclass(repr=False)
class SimulatedDrafter:
    """Stands for a drafter where nothing is drafted in earnest.

    Args:
        name: of the method.
        looks_up: whether its drafts are looked up.
        rate: probability that a token is accepted, by its position in the output.
        sure: its confidence, by the position.
        token_seconds, fixed_seconds: of a draft.
        waiting: tokens that it has to run before a draft.
        catch_up: seconds of each token that it has not run since its last draft; 0 where it waits for nothing
            else.
        share: what it says that a token costs, in plain rounds.
    """

    name: str = "simulated"
    looks_up: bool = False
    rate: Callable[[int], float] = lambda position: 0.7
    sure: Callable[[int], float] = lambda position: 1.0
    token_seconds: float = 0.1
    fixed_seconds: float = 0.0
    waiting: int = 1
    acceptance: tuple[tuple[float, ...], ...] | None = None
    members: tuple[SimulatedDrafter, ...] = ()
    origin: str = ""
    share: float | None = None
    catch_up: float = 0.0
    ran: dict[int, int] = field(default_factory=dict, init=False)
    needs_draft_model, head, shared_layers = True, None, 0

    def __repr__(self) -> str:
        return self.name

    def cost_share(self, request: Request) -> float | None:
        return self.share

    def confidence(self, request: Request) -> float:
        return self.sure(request.num_output_tokens)

    def pending(self, request: Request) -> int:
        if not self.catch_up:
            return self.waiting
        return len(request) - self.ran.get(request.request_id, 0)


@cache
def chain(length: int) -> Draft:
    """A draft of that many tokens."""
    return Draft.chain([0] * length)


@dataclass
class World:
    """Runs rounds.

    Args:
        drafter: or several, as members of one.
        forward: seconds of a forward by all of its tokens.
        seed: of what is accepted, and of noise.
        cold: seconds that the first drafts take longer, one after the other.
        noise: standard deviation of times, as a share of them.
        interrupted: share of drafts and forwards that take 1.5 to 4.5 times as long.
        cooled: how many times as long a draft takes after eight rounds without one.
        chilled: how many times as long the first plain rounds after a draft take.
        temperature: of the requests.
    """

    drafter: SimulatedDrafter
    forward: Callable[[int], float] = lambda tokens: 1.0 + 0.05 * (tokens - 1)
    seed: int = 0
    cold: Sequence[float] = ()
    noise: float = 0.0
    interrupted: float = 0.0
    cooled: float = 1.0
    chilled: Sequence[float] = ()
    temperature: float = 1.0
    drafted: int = field(default=0, init=False)
    _cold: list[float] = field(default_factory=list, init=False)
    _without: int = field(default=0, init=False)

    def run(self, policy: Policy, outputs: Sequence[int], batch_size: int = 1) -> float:
        """The seconds of outputs of these lengths, `batch_size` at a time, all of one length."""
        policy.attach(ToyModel(VOCABULARY), self.drafter, batch_size)  # type: ignore[arg-type]
        return sum(self.each(policy, outputs, batch_size))

    def each(self, policy: Policy, outputs: Sequence[int], batch_size: int = 1) -> list[float]:
        """The seconds of each output, by a policy that is attached."""
        chance, seconds = Random(self.seed), []
        self._cold = list(self.cold)
        for tokens in outputs:
            params = SamplingParams(max_tokens=tokens, temperature=self.temperature)
            running = [
                Request(next(_numbers), [1] * 20, 20, params, seed=0) for _ in range(batch_size)
            ]
            seconds.append(0.0)
            while running:
                plans = policy.plan(running)
                seconds[-1] += self.judge(policy, running, plans, chance=chance)
                left = [one for one in running if one.num_output_tokens < tokens]
                for request in running:
                    if request not in left:
                        policy.release(request)
                running = left
        return seconds

    def plain(self, outputs: Sequence[int], batch_size: int = 1) -> float:
        """The same without a draft."""
        return sum(outputs) * self.forward(batch_size)

    def judge(
        self,
        policy: Policy,
        requests: Sequence[Request],
        plans: Sequence[Plan],
        times: RoundTimes | None = None,
        chance: Random | None = None,
    ) -> float:
        """Have what was planned drafted and verified; the seconds, those of `times` where they are given."""
        drafts, verdicts, drafting = [], [], 0.0
        chance = chance or Random(self.seed)
        for request, plan in zip(requests, plans, strict=True):
            most = request.params.max_tokens or 0
            count = min(plan.num_tokens, most - request.num_output_tokens - 1)
            member = self.drafter if plan.member is None else self.drafter.members[plan.member]
            accepted = 0
            start = request.num_output_tokens
            while accepted < count and chance.random() < member.rate(start + accepted):
                accepted += 1
            if count:
                seconds = member.fixed_seconds + count * member.token_seconds
                if member.catch_up:
                    seconds += member.catch_up * (member.pending(request) - 1)
                    member.ran[request.request_id] = len(request) + accepted
                drafting = max(drafting, seconds)
            drafts.append(chain(count))
            last = Origin.RECOVERED if count else Origin.PLAIN
            origins = (*[Origin.ACCEPTED] * accepted, last)
            verdicts.append(Verdict(tuple(range(accepted)), (0,) * (accepted + 1), origins))
            request.extend(verdicts[-1].token_ids)
        self.drafted += sum(map(len, drafts))
        target = self.forward(len(requests) + sum(map(len, drafts)))
        if drafting:
            drafting += self._cold.pop(0) if self._cold else 0.0
            drafting *= self.cooled if self._without >= 8 else 1.0
        if not drafting and self._without < len(self.chilled):
            target *= self.chilled[self._without]
        self._without = 0 if drafting else self._without + 1
        drafting *= self._disturbed(chance)
        target *= self._disturbed(chance)
        times = times or RoundTimes(drafting, target, 0.0)
        policy.observe(requests, drafts, verdicts, times)
        return times.total

    def _disturbed(self, chance: Random) -> float:
        factor = max(chance.gauss(1.0, self.noise), 0.5) if self.noise else 1.0
        if self.interrupted and chance.random() < self.interrupted:
            factor *= chance.uniform(1.5, 4.5)
        return factor
