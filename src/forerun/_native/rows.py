"""Operations of the compiled kernels on rows of logits and probabilities, given as tensors.

Rows are on the CPU, contiguous, in float32 or float64; `takes` says whether given rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from forerun import _native

if TYPE_CHECKING:
    from forerun._native.kernels import DraftToVerify, ThreadPool

_MASK = 2**64 - 1
_DTYPES = (torch.float32, torch.float64)

Warp = tuple[float, int, float, float]
"""Temperature, top-k, top-p and min-p."""

_threads: ThreadPool | None = None


def takes(rows: Tensor) -> bool:
    """True if there are kernels and they can work on these rows."""
    return (
        _native.AVAILABLE
        and rows.is_cpu
        and rows.dtype in _DTYPES
        and rows.is_contiguous()
        and not rows.requires_grad
    )


def uniform(seed: int, position: int, purpose: int, node: int) -> float:
    return _native.kernels.uniform(seed & _MASK, position, purpose, node)


def noise(seed: int, position: int, size: int) -> Tensor:
    """Gumbel noise, float64 [size]."""
    row = torch.empty(size, dtype=torch.float64)
    _native.kernels.write_noise(seed & _MASK, position, to_dlpack(row))
    return row


def warp(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Tensor, list[int], list[int]]:
    """The probabilities [N, V], the indices of rows that are all -inf, and of rows that hold NaN or +inf."""
    probs = torch.empty_like(logits)
    dead, broken = _native.kernels.warp_rows(
        to_dlpack(logits), to_dlpack(probs), temperature, top_k, top_p, min_p
    )
    return probs, dead, broken


def draw(probs: Tensor, uniforms: Sequence[float]) -> list[int]:
    """Draw one token from each row: the inverse of the cumulative distribution."""
    return _native.kernels.draw_rows(to_dlpack(probs), uniforms)


def top(rows: Tensor) -> list[int]:
    """The token of each row's largest value, the lowest id on ties; -1 for an invalid row.

    A row is invalid if its largest value is infinite or one of its values is not a number.
    """
    return _native.kernels.top_rows(to_dlpack(rows))


def draw_siblings(
    probs: Tensor,
    keys: Sequence[tuple[int, int]],
    nodes: Sequence[Sequence[int]],
    replacement: bool = False,
) -> tuple[list[list[int]], Tensor]:
    """Draw the children of many nodes from the rows of `probs` [N, V].

    Returns the tokens for each row in drawn order, and the rows that they were drawn from, one
    after the other, [total, V]. Without replacement the siblings before are removed from a row,
    which is scaled to sum to one again. A row with fewer tokens than nodes has fewer children, one
    without probability none.

    Args:
        probs: one row per node, [N, V].
        keys: seed and committed length of each row.
        nodes: indices of the children of each row's node, which key their draws.
        replacement: a child may repeat its siblings' tokens.
    """
    rows = probs.new_empty(sum(map(len, nodes)), probs.shape[-1])
    masked = [(seed & _MASK, committed) for seed, committed in keys]
    tokens = _native.kernels.draw_siblings(
        to_dlpack(probs), masked, nodes, replacement, to_dlpack(rows)
    )
    return tokens, rows[: sum(map(len, tokens))]


def couple(probs: Tensor, noise: Tensor) -> list[int]:
    """Return the argmax of log probability plus noise, float64 [N, V], in each row."""
    return _native.kernels.couple_rows(to_dlpack(probs), to_dlpack(noise))


def couple_keys(probs: Tensor, keys: Sequence[tuple[int, int]]) -> list[int]:
    """Return the argmax of log probability plus noise, keyed by seed and position, in each row."""
    masked = [(seed & _MASK, position) for seed, position in keys]
    return _native.kernels.couple_keys(to_dlpack(probs), masked)


def decide(
    rule: str,
    token_ids: Sequence[int],
    parents: Sequence[int],
    target_probs: Tensor,
    draft_probs: Tensor | None,
) -> tuple[list[float], list[int], list[int], int, Tensor]:
    """The parts of the decision of `token` or `traversal` (on a chain: block)."""
    emit = torch.empty_like(target_probs)
    accept, on_accept, on_reject, start = _native.kernels.decide(
        rule,
        token_ids,
        parents,
        to_dlpack(target_probs),
        None if draft_probs is None else to_dlpack(draft_probs),
        to_dlpack(emit),
    )
    return accept, on_accept, on_reject, start, emit


def draft_to_verify(
    rule: str,
    token_ids: Sequence[int],
    parents: Sequence[int],
    draft_probs: Tensor | None,
    warp: Warp,
    key: tuple[int, int],
) -> DraftToVerify:
    """The draft of one request in the form that `verify_batch` takes, with its rule and warping.

    Args:
        rule: `token`, `traversal` (on a chain: block) or `coupled`.
        token_ids: token of each node.
        parents: parent of each node.
        draft_probs: [n, V] of the logits' dtype, contiguous; None for point masses.
        warp: settings of the request.
        key: seed and committed length.

    Raises:
        ValueError: for a rule without a compiled form, or parents or rows that do not fit the
            tokens.
    """
    rows = None if draft_probs is None else to_dlpack(draft_probs)
    seed, committed = key
    return _native.kernels.DraftToVerify(
        rule, token_ids, parents, rows, warp, seed & _MASK, committed
    )


def verify_batch(
    drafts: Sequence[DraftToVerify], logits: Tensor
) -> list[tuple[int, int] | Exception]:
    """Warp logits [B, n, V] and verify the draft of each request; only visited rows are warped.

    For a request with m nodes only the first m + 1 rows count. The result for each request is the
    node where its path ends (-1: nothing accepted) and the token after it, or the error of that
    request alone: RowError for a row that holds NaN or inf or leaves no token possible, ValueError
    for an invalid draft.

    Raises:
        ValueError: for logits that do not fit the drafts.
    """
    return _native.kernels.verify_batch(drafts, to_dlpack(logits.contiguous()), _threads)


def use_threads(pool: ThreadPool | None) -> None:
    """Verify the requests of a batch on these threads from now on; results do not change."""
    global _threads
    _threads = pool
