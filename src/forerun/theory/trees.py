"""Acceptance of siblings in a tree of drafted tokens.

The k-th child of a node (its rank) is tested if the children before it were rejected.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from forerun.errors import ConfigError
from forerun.options import check
from forerun.theory.inputs import Floats, as_row_pair
from forerun.theory.rows import acceptance_rate, corrected_distribution

MOST_SIBLINGS = 4096
MOST_ORDERS = 1 << 17


def sibling_acceptance(p: ArrayLike, q: ArrayLike, count: int) -> Floats:
    """Probability that the k-th of `count` siblings is the accepted one, [..., count].

    The siblings are drawn from q *with replacement* and tested in order, each against the residual of p
    after the siblings before it (SpecInfer, arXiv 2305.09781, multi-step speculative sampling). The sum
    over the last axis is the probability that any sibling is accepted.

    Raises:
        DistributionError: for invalid rows, or rows of different vocabularies.
        ConfigError: for a count below 1.
    """
    left, draft = as_row_pair(p, q)
    by_rank, rejected = [], np.ones(left.shape[:-1])
    for _ in range(check("count", count, int, ge=1, le=MOST_SIBLINGS)):
        accepted = np.asarray(acceptance_rate(left, draft))
        by_rank.append(rejected * accepted)
        rejected = rejected * (1.0 - accepted)
        left = corrected_distribution(left, draft)
    return np.stack(by_rank, -1)


def distinct_sibling_acceptance(p: ArrayLike, q: ArrayLike, count: int) -> Floats:
    """Probability that the k-th of `count` siblings drawn *without replacement* is accepted, [count].

    All orders of siblings are enumerated. The k-th sibling is drawn from q without the siblings before
    it, and tested against that row (as in Sequoia, arXiv 2402.12374). If q has fewer tokens than
    `count`, fewer siblings are drawn.

    Args:
        p, q: one row each, [V]; V^(count - 1) orders are enumerated.

    Raises:
        DistributionError, ConfigError: as `sibling_acceptance`; ConfigError also for stacks of rows and
            for too many orders.
    """
    target, draft = as_row_pair(p, q)
    ranks = check("count", count, int, ge=1, le=MOST_SIBLINGS)
    if target.ndim > 1:
        raise ConfigError("distinct siblings are enumerated for one row at a time; give [V].")
    if len(target) ** (ranks - 1) > MOST_ORDERS:
        raise ConfigError(
            f"{ranks} siblings of {len(target)} tokens are too many orders; shorten one of them."
        )
    by_rank = np.zeros(ranks)
    _test_siblings(target, draft, 1.0, by_rank)
    return by_rank


def _test_siblings(left: Floats, draft: Floats, reached: float, by_rank: Floats) -> None:
    """Add the tests of the next sibling and of the later ones to `by_rank`, whose first entry is next."""
    by_rank[0] += reached * np.minimum(left, draft).sum()
    if len(by_rank) == 1:
        return
    residual = np.maximum(left - draft, 0.0)
    residual = residual / residual.sum() if residual.sum() > 0.0 else left
    for token in np.flatnonzero(draft > left):
        rejected = reached * float(draft[token] - left[token])
        others = draft.copy()
        others[token] = 0.0
        if others.sum() > 0.0:
            _test_siblings(residual, others / others.sum(), rejected, by_rank[1:])
