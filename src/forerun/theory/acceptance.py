"""Acceptance of a drafted token, of siblings, and of chains: p is the target's row, q the draft's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.errors import ConfigError, DistributionError
from forerun.options import check
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


Tables = Sequence[ArrayLike] | Floats

LARGEST_TABLE = 1 << 24


def token_rule_survival(p: Tables, q: Tables) -> Floats:
    """Probability that the token rule accepts at least i + 1 drafted tokens, [n].

    E_q[prod_j min(1, p_j/q_j)] over the drafted prefix (Leviathan et al., arXiv 2211.17192).

    Raises:
        DistributionError: for invalid rows, or rows of different vocabularies.
        ConfigError: for tables that do not form a chain, or are too large to enumerate.
    """
    survival, reached = [], np.ones(())
    for target, draft in _tables(p, q):
        reached = reached[..., None] * np.minimum(target, draft)
        survival.append(reached.sum())
    return np.array(survival)


def block_rule_survival(p: Tables, q: Tables) -> Floats:
    """Probability that block verification accepts at least i + 1 drafted tokens, [n].

    E_q[w_i] with w_i = min(1, w_{i-1} p_i/q_i): the rule keeps a drafted prefix with probability
    w_i, whatever was drafted after it (Sun et al., arXiv 2403.10444). Never less than under the token
    rule.

    Raises:
        DistributionError, ConfigError: as `token_rule_survival`.
    """
    # q(prefix) w(prefix) avoids p/q, which is undefined where q is zero.
    survival, weighted, drawn = [], np.ones(()), np.ones(())
    for target, draft in _tables(p, q):
        drawn = drawn[..., None] * draft
        weighted = np.minimum(drawn, weighted[..., None] * target)
        survival.append(weighted.sum())
    return np.array(survival)


def _tables(p: Tables, q: Tables) -> list[tuple[Floats, Floats]]:
    """The tables of target and draft for each position, each of shape [V] * (i + 1)."""
    if len(p) != len(q):
        raise ConfigError(
            f"p has {len(p)} tables and q has {len(q)}; give one for each drafted token."
        )
    pairs: list[tuple[Floats, Floats]] = []
    for position, (target, draft) in enumerate(zip(p, q, strict=True)):
        target, draft = as_row_pair(target, draft)
        vocab_size = target.shape[-1]
        if pairs and vocab_size != pairs[0][0].shape[-1]:
            raise DistributionError("the tables differ in their vocabulary; use one for all.")
        if vocab_size ** (position + 1) > LARGEST_TABLE:
            raise ConfigError(
                f"{vocab_size} tokens in {len(p)} positions are too many to enumerate; "
                f"at most {LARGEST_TABLE} drafts are."
            )
        shape = (vocab_size,) * (position + 1)
        try:
            pairs.append((np.broadcast_to(target, shape), np.broadcast_to(draft, shape)))
        except ValueError:
            raise ConfigError(
                f"table {position} has the shape {target.shape}; it must broadcast to {shape}."
            ) from None
    return pairs


def end_probabilities(
    accept: NDArray[np.floating],
    on_accept: Sequence[int],
    on_reject: Sequence[int],
    start: int,
    num_nodes: int,
) -> Floats:
    """Probability that the walk ends at each node, [n + 1]; entry 0 is the last committed token."""
    ends = np.zeros(num_nodes + 1)
    open_tests = [(start, 1.0)]
    while open_tests:
        at, probability = open_tests.pop()
        if probability == 0.0:
            continue
        if at < 0:
            ends[~at] += probability
            continue
        open_tests.append((on_accept[at], probability * float(accept[at])))
        open_tests.append((on_reject[at], probability * (1.0 - float(accept[at]))))
    return ends
