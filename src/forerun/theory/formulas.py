"""Formulas for speculation in which every tested token is accepted with the same probability.

Five quantities are called "acceptance" in the literature. Each has its own name here:

- *acceptance* (alpha): the probability that a drafted token is accepted *when it is tested*, that
  is, when all tokens before it were accepted. For two rows it is `rows.acceptance_rate(p, q)`.
- *accepted drafted tokens a round*: `expected_accepted`, without the recovered or bonus token.
- *tokens a round*: `expected_tokens`, which is one more, because each round ends in a recovered or
  bonus token.
- *accepted / drafted*: `accepted_per_drafted`, the acceptance rate of the serving engines. Drafted
  tokens after a rejection are never tested but count here, so it is at most alpha.
- *tokens per drafted token*: `tokens_per_drafted`. Some texts call it average acceptance, but it
  counts the recovered and bonus tokens and can exceed 1.

`length` is the number of tokens drafted a round (gamma). `cost_ratio` is the cost of one draft forward
(c), and `verification_cost` the cost of checking length + 1 tokens, both in plain target forwards.
All functions broadcast, and return a number for numbers.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192
(called *Leviathan* below). See `rows` for alpha from two rows, `chains` for rows that differ by
position and for block verification, and `trees` for trees.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from forerun.errors import ConfigError
from forerun.options import check
from forerun.theory.inputs import (
    Floats,
    Ints,
    Values,
    costs,
    fractions,
    lengths,
    plain,
    together,
)


def expected_accepted(acceptance: ArrayLike, length: ArrayLike) -> Values:
    """Accepted drafted tokens a round: alpha + alpha^2 + … + alpha^length."""
    alpha, gamma = fractions("acceptance", acceptance), lengths("length", length)
    return plain(alpha * _geometric_sum(alpha, gamma))


def expected_tokens(acceptance: ArrayLike, length: ArrayLike) -> Values:
    """Tokens a round with the recovered or bonus token: (1 - alpha^(length+1)) / (1 - alpha).

    Leviathan, equation 1; length + 1 at alpha = 1, and without cancellation near it.

    Raises:
        ConfigError: for an acceptance outside [0, 1] or a negative length.
    """
    alpha, gamma = fractions("acceptance", acceptance), lengths("length", length)
    return plain(_geometric_sum(alpha, gamma + 1))


def accepted_per_drafted(acceptance: ArrayLike, length: ArrayLike) -> Values:
    """Accepted / drafted tokens, the acceptance rate that engines report; for lengths of at least 1."""
    drafted = lengths("length", length, shortest=1)
    return plain(np.asarray(expected_accepted(acceptance, length) / drafted))


def tokens_per_drafted(acceptance: ArrayLike, length: ArrayLike) -> Values:
    """Tokens a round / drafted tokens a round, which is not an acceptance; for lengths of at least 1."""
    drafted = lengths("length", length, shortest=1)
    return plain(np.asarray(expected_tokens(acceptance, length) / drafted))


def speedup(
    acceptance: ArrayLike,
    length: ArrayLike,
    cost_ratio: ArrayLike,
    *,
    verification_cost: ArrayLike = 1.0,
) -> Values:
    """Plain time / speculative time for the same tokens.

    expected_tokens / (cost_ratio * length + verification_cost). With a verification cost of 1, it is
    Leviathan, theorem 3.8.

    Raises:
        ConfigError: for an acceptance outside [0, 1], a negative length, negative, infinite or NaN
            costs, or a verification cost of zero.
    """
    cost = _round_cost(length, cost_ratio, verification_cost)
    return round_speedup(expected_tokens(acceptance, length), cost)


def round_speedup(tokens: ArrayLike, cost: ArrayLike) -> Values:
    """Speed-up of rounds, from their tokens and their cost in plain target forwards."""
    emitted, spent = together(costs("tokens", tokens), costs("cost", cost, above=True))
    return plain(emitted / spent)


def optimal_length(
    acceptance: float,
    cost_ratio: float,
    longest: int = 64,
    *,
    verification_cost: ArrayLike = 1.0,
) -> int:
    """The length up to `longest` with the highest speed-up, the shortest among equals.

    It is 0 if no length beats plain decoding. With a verification cost of 1, that is so if and only if
    acceptance <= cost_ratio (Leviathan, corollary 3.9).

    Args:
        verification_cost: one number, or an array [longest] with entry i for a draft of i + 1 tokens.
    """
    alpha = check("acceptance", acceptance, float, ge=0.0, le=1.0)
    longest = check("longest", longest, int, ge=0, le=1 << 16)
    if longest == 0:
        return 0
    gains = np.asarray(
        speedup(alpha, np.arange(1, longest + 1), cost_ratio, verification_cost=verification_cost)
    )
    if gains.shape != (longest,):
        raise ConfigError(
            f"verification_cost does not fit; give one number or one for each length to {longest}."
        )
    best = int(np.argmax(gains))
    return best + 1 if gains[best] > 1.0 else 0


def acceptance_ceiling(acceptance: ArrayLike) -> Values:
    """The limit of the speed-up with free drafts of growing length: 1 / (1 - alpha), inf at 1."""
    alpha = fractions("acceptance", acceptance)
    rejection = 1.0 - alpha
    sure = rejection == 0.0
    return plain(np.where(sure, np.inf, 1.0 / np.where(sure, 1.0, rejection)))


def break_even_acceptance(
    length: ArrayLike, cost_ratio: ArrayLike, *, verification_cost: ArrayLike = 1.0
) -> Values:
    """The smallest alpha at which drafting `length` tokens does not lose.

    It is 0 if drafting never loses, and NaN if it always loses, because a round costs more than
    length + 1. For a length of 1 and a verification cost of 1, it is the cost ratio itself.
    """
    cost = _round_cost(length, cost_ratio, verification_cost)
    return plain(_smallest_acceptance(cost, lengths("length", length)))


def _round_cost(length: ArrayLike, cost_ratio: ArrayLike, verification_cost: ArrayLike) -> Floats:
    drafted, draft_cost, checking = together(
        lengths("length", length),
        costs("cost_ratio", cost_ratio),
        costs("verification_cost", verification_cost, above=True),
    )
    return np.asarray(draft_cost * drafted + checking)


def _geometric_sum(alpha: Floats, terms: Ints) -> Floats:
    """Sum 1 + alpha + … of `terms` terms, by doubling: all are positive, so nothing cancels."""
    alpha, terms = together(alpha, terms)
    total, power = np.zeros(alpha.shape), np.ones(alpha.shape)
    for bit in reversed(range(int(terms.max(initial=0)).bit_length())):
        total, power = total + power * total, power * power
        odd = (terms >> bit) & 1 == 1
        total = np.where(odd, 1.0 + alpha * total, total)
        power = np.where(odd, alpha * power, power)
    return total


def _smallest_acceptance(tokens: Floats, length: Ints) -> Floats:
    """The smallest alpha with at least `tokens` tokens a round, by bisection; NaN if there is none."""
    tokens, length = together(tokens, length)
    low, high = np.zeros(tokens.shape), np.ones(tokens.shape)
    for _ in range(60):
        middle = 0.5 * (low + high)
        enough = _geometric_sum(middle, length + 1) >= tokens
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    reached = np.where(tokens <= 1.0, 0.0, high)
    return np.where(tokens <= length + 1, reached, np.nan)
