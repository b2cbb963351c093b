"""Chains of drafted tokens whose rows depend on the position and the drafted prefix.

The rows are tables. Entry i belongs to the token after i drafted tokens and broadcasts to the shape
[V] * (i + 1): the last axis is the token, the axes before it are the drafted prefix. An array [n, V]
is a chain of n tokens whose rows do not depend on the prefix. p is the target's, q the draft's.

All results are exact: sums over all V^n drafts, weighted by the draft's probability.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from forerun.errors import ConfigError, DistributionError
from forerun.theory.inputs import Floats, as_row_pair

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
