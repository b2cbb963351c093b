"""Traversal verification of drawn trees in NumPy: the reference, written to be read.

Weng et al., "Traversal Verification for Speculative Tree Decoding" (arXiv 2505.12398): the leaves
are judged first, in depth-first order, and each with the whole path that leads to it. On a chain it
is block verification (Sun et al., arXiv 2403.10444).

Every node v holds a weight w: the share of the draft's arrivals at v that the target wants to pass
through it. What the subtree of v has to do, averaged over what is drawn below v, is

    emit the target's own continuation of v with probability w, and fail with probability 1 - w.

A leaf does that by ending there with probability w. At an inner node with target row p, a child x
drawn from q gets the weight min(1, w p(x) / q(x)), so its subtree emits min(q(x), w p(x)) of every
token. That leaves r = max(w p - q, 0) to emit, and the child fails with probability sum(r) + 1 - w.
So the rest of the node faces the same task with

    w <- sum(r) / (sum(r) + 1 - w),    p <- r / sum(r),

the same whichever token it was that failed, and therefore right for a sibling drawn given that
token. The next sibling does the same with its own row; when all have failed, the path ends at v
with what w has become, and a token of what p has become is emitted. At the root w is 1 and stays 1.

It accepts at least what the token rule accepts on chains (proven by Sun et al.) and, as enumerated,
on trees where no sibling carries a larger subtree than those before it. Where a later one does, it
can accept less: what the first sibling takes beyond its share, the later one cannot use.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from forerun.errors import ConfigError, DistributionError
from forerun.theory.inputs import Floats, as_rows


class Decision(NamedTuple):
    """The tests of a draft as plain arrays, in the form of `forerun.verification.decision.Decision`.

    The first four are what `forerun.theory.acceptance.end_probabilities` takes. Test i asks
    whether the path ends at node i; a negative code c means that it ends at node ~c - 1.
    """

    accept: Floats
    on_accept: tuple[int, ...]
    on_reject: tuple[int, ...]
    start: int
    emit: Floats


def decide(
    token_ids: Sequence[int],
    parents: Sequence[int],
    target_probs: ArrayLike,
    draft_probs: ArrayLike | None = None,
) -> Decision:
    """The tests of traversal verification.

    Args:
        token_ids: one a node, [n].
        parents: of each node, a smaller index; -1 is the committed text. Siblings in drawn order.
        target_probs: after the committed text, then after each node, [n + 1, V].
        draft_probs: row i is what token i was drawn from when it was drawn, [n, V]: without
            replacement it lacks the siblings before. None for a point mass.

    Raises:
        ConfigError: for a tree that is none, or ids outside the vocabulary.
        DistributionError: for rows that are not probabilities, or too many or too few of them.
    """
    target, draft = _checked(token_ids, parents, target_probs, draft_probs)
    count = len(parents)
    weight = np.ones(count + 1)
    left = target.copy()
    for node, (token, parent) in enumerate(zip(token_ids, parents, strict=True)):
        # Parents and earlier siblings have smaller indices, so weight[parent + 1] and
        # left[parent + 1] already are what the siblings before left over.
        wanted = weight[parent + 1] * left[parent + 1]
        q = draft[node]
        weight[node + 1] = min(1.0, wanted[token] / q[token]) if q[token] > 0 else 0.0
        residual = np.maximum(wanted - q, 0.0)
        weight[parent + 1], left[parent + 1] = _after_failure(
            weight[parent + 1], left[parent + 1], residual
        )
    on_reject, start = _depth_first(parents)
    on_accept = tuple(_end_at(node) for node in range(count))
    return Decision(weight[1:], on_accept, on_reject, start, left)


def _after_failure(weight: float, row: Floats, residual: Floats) -> tuple[float, Floats]:
    """What a node still has to emit once a child has failed: its weight and its row."""
    spare = float(residual.sum())
    missing = 1.0 - weight
    if spare == 0.0:
        # Nothing left to emit. With nothing missing either, the child cannot have failed: any
        # weight will do as long as it is a number, and 1 keeps it so at the root.
        return (1.0 if missing == 0.0 else 0.0), row
    return spare / (spare + missing), residual / spare


def _depth_first(parents: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Which test follows when that of a node fails, and the first one: the first leaf."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)

    def first_leaf(node: int) -> int:
        while children[node + 1]:
            node = children[node + 1][0]
        return node

    on_reject = [parent if parent >= 0 else _end_at(-1) for parent in parents]
    for siblings in children:
        for one, following in itertools.pairwise(siblings):
            on_reject[one] = first_leaf(following)
    return tuple(on_reject), first_leaf(-1) if len(parents) else _end_at(-1)


def _end_at(node: int) -> int:
    return ~(node + 1)


def _checked(
    token_ids: Sequence[int],
    parents: Sequence[int],
    target_probs: ArrayLike,
    draft_probs: ArrayLike | None,
) -> tuple[Floats, Floats]:
    count = len(parents)
    if len(token_ids) != count or not all(-1 <= p < node for node, p in enumerate(parents)):
        raise ConfigError(
            f"parents {list(parents)} of {len(token_ids)} tokens are not a tree; give one parent a "
            "token, an earlier node or -1."
        )
    target = as_rows("target_probs", target_probs)
    if target.ndim != 2 or len(target) != count + 1:
        raise DistributionError(
            f"target_probs has shape {list(target.shape)}; {count} nodes need [{count + 1}, V]."
        )
    size = target.shape[1]
    if not all(0 <= token < size for token in token_ids):
        raise ConfigError(f"token ids are {list(token_ids)}; they must be 0 to {size - 1}.")
    if count == 0:
        return target, np.zeros((0, size))
    if draft_probs is None:
        return target, np.eye(size)[np.asarray(token_ids)]
    draft = as_rows("draft_probs", draft_probs)
    if draft.shape != (count, size):
        raise DistributionError(
            f"draft_probs has shape {list(draft.shape)}; it must be [{count}, {size}]."
        )
    return target, draft
