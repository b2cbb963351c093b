"""Decides whether speculation pays, from recorded rounds and their standard errors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from forerun.measure.intervals import Estimate, ratio_of_means
from forerun.monitor.snapshot import RoundCounts

# Minimum evidence for a decision: rounds that drafted, and plain tokens of each request.
LEAST_ROUNDS, LEAST_PLAIN_TOKENS = 30, 8
# Half-width of the confidence interval in standard errors. The test is repeated every round, so its
# error rate must be about one in a thousand, not one in twenty.
WIDTH = 3.0
RULES_OF_THUMB = (
    (0.30, "hurts"),
    (0.40, "too little for a draft model: look up or self-speculate"),
    (0.60, "modest"),
    (0.75, "substantial"),
    (math.inf, "3 x and more"),
)
"""Acceptance of tested tokens, up to where, and what public texts promise for it (docs/theory.md § 12)."""


@dataclass(frozen=True)
class DisableAdvice:
    """A decision on speculation with its reason; true if speculation should stop."""

    disable: bool
    reason: str

    def __bool__(self) -> bool:
        return self.disable


def plain_estimates(samples: Mapping[int, Iterable[tuple[float, int]]]) -> dict[int, Estimate]:
    """Seconds per plain token by number of requests in a round, where enough tokens were timed.

    Args:
        samples: (seconds, tokens of all requests) by number of requests in a round.
    """
    made = {}
    for size, pairs in samples.items():
        seconds, tokens = zip(*pairs, strict=True)
        if sum(tokens) >= LEAST_PLAIN_TOKENS * size and sum(seconds) > 0.0:
            estimate = ratio_of_means(seconds, tokens)
            # The error of a single sample is unknown; the rounds' own spread then decides alone.
            made[size] = replace(estimate, standard_error=0.0) if len(tokens) == 1 else estimate
    return made


def disable_advice(
    rounds: Iterable[RoundCounts], plain: Mapping[int, Estimate], break_even: float | None
) -> DisableAdvice:
    """Decide whether speculation loses in these rounds, beyond chance."""
    drafting = [done for done in rounds if done.drafted]
    if len(drafting) < LEAST_ROUNDS:
        count = f"{len(drafting)} of the newest rounds drafted"
        return DisableAdvice(False, f"{count}; {LEAST_ROUNDS} are asked for before a decision.")
    if break_even is None:
        comparable = [done for done in drafting if done.seconds and len(done.rows) in plain]
        if len(comparable) >= LEAST_ROUNDS:
            return _by_time(comparable, plain)
    return _by_acceptance(drafting, break_even)


def _by_time(rounds: Sequence[RoundCounts], plain: Mapping[int, Estimate]) -> DisableAdvice:
    """Decide by time: the rounds against plain decoding of their tokens.

    The test is on the sum of the seconds saved by round, not on a mean of ratios. A single round of an
    hour then widens the interval by more than it moves the sum, and decides nothing.
    """
    saved, tokens = [], defaultdict[int, int](int)
    for done in rounds:
        size = len(done.rows)
        tokens[size] += done.emitted
        saved.append(done.emitted * plain[size].value - (done.seconds or 0.0))
    total, count = sum(saved), len(saved)
    variance = count * sum((seconds - total / count) ** 2 for seconds in saved) / (count - 1)
    variance += sum((number * plain[size].standard_error) ** 2 for size, number in tokens.items())
    margin = WIDTH * math.sqrt(variance)
    spent = sum(done.seconds or 0.0 for done in rounds)
    speed, most = 1.0 + total / spent, 1.0 + (total + margin) / spent
    measured = f"{speed:.2f} x plain decoding over {count} timed rounds"
    if total + margin < 0.0:
        return DisableAdvice(True, f"slower: {measured}, at most {most:.2f} x allowing for chance.")
    if total - margin > 0.0:
        return DisableAdvice(False, f"faster: {measured}.")
    return DisableAdvice(
        False, f"undecided: {measured}, and up to {most:.2f} x allowing for chance."
    )


def _by_acceptance(rounds: Sequence[RoundCounts], break_even: float | None) -> DisableAdvice:
    """Decide by acceptance: the share of the tested tokens against the break-even."""
    tested = [done.tested for done in rounds]
    if not any(tested):
        return DisableAdvice(False, "undecided: no drafted token was tested.")
    estimate = ratio_of_means([done.accepted for done in rounds], tested)
    # The default break-even is the end of the first rule of thumb: below it, drafts hurt.
    limit = RULES_OF_THUMB[0][0] if break_even is None else break_even
    margin = WIDTH * estimate.standard_error
    low, high = max(0.0, estimate.value - margin), min(1.0, estimate.value + margin)
    text = (
        f"{estimate.value:.2f} of the tested tokens accepted over {len(rounds)} rounds "
        f"({low:.2f} to {high:.2f} allowing for chance), break-even {limit:.2f}"
    )
    if break_even is None:
        words = next(words for end, words in RULES_OF_THUMB if estimate.value < end)
        text += f"; by rule of thumb: {words}. Time plain rounds to know"
    if high < limit:
        return DisableAdvice(True, f"slower: {text}.")
    return DisableAdvice(False, f"{'no sign of a loss' if low >= limit else 'undecided'}: {text}.")
