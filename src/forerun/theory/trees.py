"""The acceptance of siblings in a tree of drafted tokens.

The k-th child of a node (its rank) is tested when those before it were rejected.
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
    """The probability that the k-th of `count` siblings is the one accepted, [..., count].

    The siblings are drawn from q *with replacement* and tested in order, each against the residual
    of p after the ones before it (SpecInfer, arXiv 2305.09781, multi-step speculative sampling). The
    sum over the last axis is the probability that one of them is accepted.

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
    """The same for siblings drawn *without replacement*, [count], by enumeration of their orders.

    The k-th sibling is drawn from q without the ones before it, and tested against that row (as
    Sequoia draws and verifies, arXiv 2402.12374). Where q has fewer tokens than siblings, no more are
    drawn.

    Args:
        p, q: one row each, [V]; V^(count - 1) orders are enumerated.

    Raises:
        As `sibling_acceptance`; ConfigError for stacks of rows and for too many orders.
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
    """Add the tests of the next sibling, and of those after it, to `by_rank` (its later entries)."""
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
