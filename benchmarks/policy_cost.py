"""What policy auto costs a round, by what it has to decide.

python -m benchmarks.policy_cost [--rounds 4000] [--repeats 7]

Rounds are simulated: drafters, costs and acceptance are made up, planning and learning are real. Printed
are microseconds a round with one request and with sixteen, and what each further request adds; medians of
the repeats.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter

from forerun.core import Draft, Plan, Request, RoundTimes, Verdict
from forerun.costs.table import CostTable
from forerun.policies.auto import AutoOptions, AutoPolicy
from forerun.policies.base import BasePolicy
from forerun.report.markdown import heading, line
from tests.helpers.simulated_rounds import SimulatedDrafter, World

MANY, OUTPUT = 16, 200


class Timed(BasePolicy):
    """A policy and the seconds that it has taken."""

    name = "timed"

    def __init__(self, policy: AutoPolicy) -> None:
        self.attach, self.release = policy.attach, policy.release  # type: ignore[method-assign]
        self.policy, self.seconds, self.rounds = policy, 0.0, 0

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        started = perf_counter()
        plans = self.policy.plan(requests)
        self.seconds += perf_counter() - started
        return plans

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
    ) -> None:
        started = perf_counter()
        self.policy.observe(requests, drafts, verdicts, times)
        self.seconds += perf_counter() - started
        self.rounds += 1


def kinds() -> dict[str, Callable[[], SimulatedDrafter]]:
    """What it has to decide about."""
    noise = Random(0)
    return {
        "a draft model that pays": lambda: SimulatedDrafter(rate=lambda _: 0.8, token_seconds=0.05),
        "a draft model that does not": lambda: SimulatedDrafter(
            rate=lambda _: 0.2, token_seconds=0.5
        ),
        "lookups as sure as before": lambda: SimulatedDrafter(
            looks_up=True, rate=lambda _: 0.8, token_seconds=0.0
        ),
        "lookups, ever differently sure": lambda: SimulatedDrafter(
            looks_up=True, rate=lambda _: 0.6, sure=lambda _: noise.random(), token_seconds=0.0
        ),
        "lookups that find nothing": lambda: SimulatedDrafter(
            looks_up=True, sure=lambda _: 0.0, token_seconds=0.0
        ),
    }


def microseconds(drafter: SimulatedDrafter, batch_size: int, rounds: int) -> float:
    """Of one round."""
    world = World(drafter)
    policy = AutoPolicy(None, AutoOptions(calibrate=False))
    rows = ((n, b, 0, world.forward(n * b)) for n in range(1, 18) for b in (1, MANY))
    policy.know(CostTable.from_rows(rows))
    timed = Timed(policy)
    world.run(timed, [OUTPUT] * max(rounds // OUTPUT, 2), batch_size)
    return 1e6 * timed.seconds / timed.rounds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    print(heading(["to decide about", "1 request", f"{MANY} requests", "each further one"]))
    for name, made in kinds().items():
        single, many = (
            statistics.median(
                microseconds(made(), size, options.rounds // size) for _ in range(options.repeats)
            )
            for size in (1, MANY)
        )
        further = (many - single) / (MANY - 1)
        print(line([name, *(f"{value:.1f}" for value in (single, many, further))]))


if __name__ == "__main__":
    main()
