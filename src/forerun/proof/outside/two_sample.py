"""Permutation tests of answers with speculation against answers without, where no reference is known.

Answers to one prompt are exchangeable if speculation changes nothing, so each statistic is compared with
its values after the labels on and off have been dealt again within every prompt: an exact test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from forerun.proof.outside.reply import Token
from forerun.proof.power import POWER
from forerun.theory.goodness_of_fit import holm
from forerun.theory.inputs import Floats

PERMUTATIONS = 2000
TESTS = ("next tokens", "log probability", "its spread", "tokens said before", "length")
"""Next tokens: counts at every prefix that answers share; log probability: mean of an answer's tokens."""
# Total variation between two normal distributions, in units of their small distance.
_VARIATION = 1.0 / math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class SampledAnswer:
    """A sampled answer.

    Args:
        tokens: of the answer.
        logprob: mean log probability of its tokens; NaN if unknown.
    """

    tokens: tuple[Token, ...]
    logprob: float


Pairs = Sequence[tuple[Sequence[SampledAnswer], Sequence[SampledAnswer]]]
"""Answers on and off, by prompt."""


def permutation_tests(pairs: Pairs, seed: int) -> dict[str, float]:
    """P-values by test, after Holm's correction."""
    random = np.random.default_rng([0x74776F, seed % 2**64])
    totals = np.zeros((len(TESTS), PERMUTATIONS + 1))
    for on, off in pairs:
        answers = [*on, *off]
        # Row 0 holds the true labels, which count among the permutations.
        labels = np.zeros((PERMUTATIONS + 1, len(answers)))
        labels[:, : len(on)] = 1.0
        labels[1:] = random.permuted(labels[1:], axis=1)
        totals[0] += _tree_statistic(answers, labels)
        numbers = _numbers(answers)
        for index, values in enumerate(numbers, start=1):
            totals[index] += _mean_difference(values, labels)
    totals[1:] = np.abs(totals[1:])
    reached = (totals >= totals[:, :1] * (1.0 - 1e-9)).mean(1)
    return dict(zip(TESTS, holm(reached.tolist()), strict=True))


def answers_needed(deviation: float, level: float) -> int:
    """Answers on each side that show a deviation in total variation between whole answers, about.

    The deviation is one that moves a statistic of the tests evenly; POWER is the probability that it is
    seen.
    """
    # A two-sided test at the strictest step of Holm's correction.
    critical = float(special.ndtri(1.0 - level / (2 * len(TESTS))))
    shift = float(special.ndtri(POWER)) + critical
    return math.ceil(2.0 * (shift * _VARIATION / deviation) ** 2)


def _numbers(answers: Sequence[SampledAnswer]) -> list[Floats]:
    """Numbers of each answer, standardized within the prompt, in the order of TESTS[1:]."""
    logprob = _standard(np.array([answer.logprob for answer in answers]))
    repeats = [1.0 - len(set(answer.tokens)) / max(len(answer.tokens), 1) for answer in answers]
    lengths = [float(len(answer.tokens)) for answer in answers]
    return [
        logprob,
        _standard(logprob**2),
        _standard(np.array(repeats)),
        _standard(np.array(lengths)),
    ]


def _standard(values: Floats) -> Floats:
    deviation = float(values.std())
    if not math.isfinite(deviation) or deviation < 1e-12:
        return np.zeros_like(values)
    scaled: Floats = (values - values.mean()) / deviation
    return scaled


def _mean_difference(values: Floats, labels: Floats) -> Floats:
    on = labels @ values
    difference: Floats = on / labels[0].sum() - (values.sum() - on) / (1.0 - labels[0]).sum()
    return difference * math.sqrt(len(values))


def _tree_statistic(answers: Sequence[SampledAnswer], labels: Floats) -> Floats:
    """Chi-square of the next tokens at all prefixes that at least two answers share, [PERMUTATIONS + 1]."""
    places: dict[tuple[Token | None, ...], list[int]] = {}
    for number, answer in enumerate(answers):
        # None is the end of an answer.
        steps = (*answer.tokens, None)
        for end in range(1, len(steps) + 1):
            places.setdefault(steps[:end], []).append(number)
    total = np.zeros(len(labels))
    everyone = list(range(len(answers)))
    for prefix, numbers in places.items():
        parents = places[prefix[:-1]] if len(prefix) > 1 else everyone
        if len(parents) < 2 or len(numbers) == len(parents):
            continue
        on, all_on = labels[:, numbers].sum(1), labels[:, parents].sum(1)
        expected = all_on * (len(numbers) / len(parents))
        total += (on - expected) ** 2 / len(numbers)
    return total
