"""Exactness by statistics: tests every token of many outputs against the target's row at its prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from forerun.engine.engine import Engine
from forerun.proof.effort import ProofOutputs
from forerun.proof.gather import Tally, gather
from forerun.proof.power import Limit, limits
from forerun.proof.score_tests import QUESTIONS, WEIGHTS, assign_groups
from forerun.theory.goodness_of_fit import holm
from forerun.theory.inputs import Ints

# Tokens in the second look (after an alarm) / in the first.
SECOND_LOOK = 2
# Level of the first look over the level that is asked for, and the most that it is raised to. The second look
# has the rest of the square: fewer tokens show a deviation, and no more proofs fail without one.
FIRST_LEVEL, MOST_LEVEL = 5.0, 0.05
# Offset of the seeds of the second look, so that its outputs are new.
_FRESH = 2**40


@dataclass(frozen=True)
class TestResult:
    """Result of one test.

    Args:
        name: name of the test.
        question: the hypothesis that is tested.
        count: number of outcomes.
        statistic, degrees: chi-square statistic and its degrees of freedom.
        p_value, adjusted: p-value before and after Holm's correction over all tests of the look.
    """

    name: str
    question: str
    count: int
    statistic: float
    degrees: int
    p_value: float
    adjusted: float


@dataclass(frozen=True)
class Look:
    """All tests over one set of outputs.

    Args:
        level: probability of a false alarm.
        tests: results in the order of QUESTIONS.
        num_tokens: number of emitted tokens tested.
        num_outputs: number of outputs.
        rules: names of the rules that verified drafts.
        impossible: number of tokens that the target's row excludes, rounding allowed for.
        largest_row_difference: largest difference between the row that verified a token and the
            teacher-forced row, in the token's probability or in that of all tokens before it.
        row_tolerance: difference that rounding explains; None with top-k, top-p or min-p, whose
            cut-off rounding may move.
        limits: detection limits.
        alarms: names of the tests and checks that failed.
        seconds: time of the look.
    """

    level: float
    tests: tuple[TestResult, ...]
    num_tokens: int
    num_outputs: int
    rules: tuple[str, ...]
    impossible: int
    largest_row_difference: float
    row_tolerance: float | None
    limits: tuple[Limit, ...]
    alarms: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Statistics:
    """Result of the statistical tests.

    Args:
        passed: True if there was no alarm in the last look.
        level: root of the probability that both looks raise a false alarm.
        detection_limit: the largest detection limit over all families (see `Limit`); None without limits.
        looks: one look, or after an alarm in it two, the second at new outputs.
    """

    passed: bool
    level: float
    detection_limit: float | None
    looks: tuple[Look, ...]

    @property
    def first(self) -> Look:
        return self.looks[0]


def by_statistics(
    engine: Engine, prompts: Sequence[list[int]], outputs: ProofOutputs
) -> Statistics:
    """Draw outputs and test every token.

    An alarm counts as a defect if a second look, at more and new outputs, raises one too. An exact
    method does so with the probability level².

    Args:
        engine: an engine with a drafter. Requests have no seed, because under `auto` a seed would
            select the coupled rule.
        prompts: token ids, used in turn.
        outputs: outputs to draw.
    """
    # Both looks have the same groups, so that the second can confirm the first.
    random = np.random.default_rng([0x677270, outputs.seed % 2**64])
    groups = assign_groups(engine.target.vocab_size, random)
    levels = levels_of(outputs.level)
    looks = [_look(engine, prompts, outputs, groups, levels)]
    if looks[0].alarms:
        again = replace(
            outputs,
            num_tokens=SECOND_LOOK * looks[0].num_tokens,
            seconds=None,
            seed=outputs.seed + _FRESH,
        )
        looks.append(_look(engine, prompts, again, groups, levels[::-1]))
    limit = max((limit.total_variation for limit in looks[0].limits), default=None)
    return Statistics(not looks[-1].alarms, outputs.level, limit, tuple(looks))


def levels_of(level: float) -> tuple[float, float]:
    """Levels of the first and of the second look."""
    first = max(level, min(FIRST_LEVEL * level, MOST_LEVEL))
    return first, level / first * level


def _look(
    engine: Engine,
    prompts: Sequence[list[int]],
    outputs: ProofOutputs,
    groups: Ints,
    levels: tuple[float, float],
) -> Look:
    """A look with the first of `levels`."""
    started = perf_counter()
    tally = gather(engine, prompts, outputs, groups)
    return _result(tally, outputs, levels, perf_counter() - started)


def _result(
    tally: Tally, outputs: ProofOutputs, levels: tuple[float, float], seconds: float
) -> Look:
    # A test has rank 0 if its outcomes vary too little.
    tests = [
        tally.tests.by_name[name]
        for name in QUESTIONS
        if name in tally.tests.by_name and tally.tests.by_name[name].rank
    ]
    weights = [WEIGHTS[test.name] for test in tests]
    adjusted = holm([test.p_value for test in tests], weights)
    results = tuple(
        TestResult(
            test.name,
            QUESTIONS[test.name],
            test.count,
            test.statistic,
            test.rank,
            test.p_value,
            corrected,
        )
        for test, corrected in zip(tests, adjusted, strict=True)
    )
    params = outputs.params
    edges = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
    alarms = [test.name for test in results if test.adjusted < levels[0]]
    alarms += ["impossible tokens"] if tally.impossible else []
    alarms += ["rows"] if not edges and tally.row_difference > tally.row_tolerance else []
    return Look(
        level=levels[0],
        tests=results,
        num_tokens=tally.num_tokens,
        num_outputs=tally.num_outputs,
        rules=tuple(sorted(tally.used)),
        impossible=tally.impossible,
        largest_row_difference=tally.row_difference,
        row_tolerance=None if edges else tally.row_tolerance,
        limits=tuple(limits(tally.tests, tally.rows, tally.starts, levels, SECOND_LOOK)),
        alarms=tuple(alarms),
        seconds=seconds,
    )
