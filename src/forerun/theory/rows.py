"""Overlap and residual of two rows of probability: p is the target's, q the draft's."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from forerun.theory.inputs import Floats, Values, as_row_pair, plain


def total_variation(p: ArrayLike, q: ArrayLike) -> Values:
    """Total variation: half the L1 distance between rows [..., V].

    See Leviathan et al., arXiv 2211.17192, section 3.2.

    Raises:
        DistributionError: for invalid rows, or rows of different vocabularies.
    """
    p, q = as_row_pair(p, q)
    return plain(0.5 * np.abs(p - q).sum(-1))


def acceptance_rate(p: ArrayLike, q: ArrayLike) -> Values:
    """Probability that a token drawn from q is accepted against p, for rows [..., V].

    sum_x q(x) min(1, p(x)/q(x)) = sum_x min(p(x), q(x)) = 1 - total variation
    (Leviathan et al., theorem 3.5 and corollary 3.6). A point mass at x is accepted with p(x).

    Raises:
        DistributionError: for invalid rows, or rows of different vocabularies.
    """
    p, q = as_row_pair(p, q)
    return plain(np.minimum(np.minimum(p, q).sum(-1), 1.0))


def coupled_acceptance_rate(p: ArrayLike, q: ArrayLike) -> Values:
    """Probability that target and draft draw the same token from shared Gumbel noise.

    sum_x 1 / sum_y max(p(y)/p(x), q(y)/q(x)), at least (1 - TV)/(1 + TV) and at most 1 - TV
    (Daliri, Musco and Suresh, arXiv 2408.07978). Rows [..., V]; takes memory of [..., V, V].
    """
    p, q = as_row_pair(p, q)
    shared = (p > 0) & (q > 0)
    safe_p, safe_q = np.where(shared, p, 1.0), np.where(shared, q, 1.0)
    with np.errstate(over="ignore"):  # Rivals of a nearly impossible token sum to infinity.
        rivals = np.maximum(
            p[..., None, :] / safe_p[..., :, None], q[..., None, :] / safe_q[..., :, None]
        ).sum(-1)
    # A token is its own rival, so the sum is at least 1.
    return plain(np.where(shared, 1.0 / np.where(shared, rivals, 1.0), 0.0).sum(-1))


def corrected_distribution(p: ArrayLike, q: ArrayLike) -> Floats:
    """Distribution of recovered tokens, norm(max(p - q, 0)), for rows [..., V].

    If the residual is zero (p = q, so nothing is rejected), the row is p (Leviathan et al., section
    2.3; Chen et al., arXiv 2302.01318).
    """
    p, q = as_row_pair(p, q)
    residual = np.maximum(p - q, 0.0)
    total = residual.sum(-1, keepdims=True)
    left = total > 0.0
    return np.where(left, residual / np.where(left, total, 1.0), p)
