"""Drafting of whole chains in one call of the kernels, by a draft model or a trained head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from forerun import _native
from forerun.contracts import ChainRequest
from forerun.core import Draft, Drawing
from forerun.models.cpu.errors import TypedErrors

if TYPE_CHECKING:
    from forerun._native.kernels import ThreadPool

_ERRORS = TypedErrors("a head")


def native_chain(chain: ChainRequest, head: Any = None) -> Any:
    """A chain in the form that the kernels take, with an output head of its own if there is one."""
    text, params = chain.text, chain.text.params
    return _native.kernels.DraftChain(
        chain.row,
        chain.pending,
        chain.limit,
        list(text.stop_token_ids),
        chain.drawing.value,
        (params.temperature, params.top_k, params.top_p, params.min_p),
        text.seed % 2**64,
        len(text),
        head,
        chain.least,
    )


def rows_to_fill(chains: Sequence[ChainRequest], vocab_size: int) -> list[Tensor]:
    """Memory for the rows that each chain's tokens are drawn from, [limit, V]; empty if none are sampled."""
    return [
        torch.empty(chain.limit if chain.drawing is Drawing.SAMPLED else 0, vocab_size)
        for chain in chains
    ]


def drafts_of(drafted: Sequence[Sequence[int]], probs: Sequence[Tensor]) -> list[Draft]:
    """The drafts of some chains, with the part of their rows that was filled."""
    return [
        Draft.chain(tokens, rows[: len(tokens)] if len(rows) and tokens else None)
        for tokens, rows in zip(drafted, probs, strict=True)
    ]


class CpuHeadChains:
    """A trained head that drafts chains; implements `forerun.contracts.HeadChains`.

    Args:
        pool: the threads to run on.
        native: the kernels' object.
        vocab_size: the target's.
    """

    def __init__(self, pool: ThreadPool, native: Any, vocab_size: int) -> None:
        self._pool, self._native, self._vocab_size = pool, native, vocab_size

    def draft(
        self, caches: Sequence[Any], requests: Sequence[ChainRequest], states: Sequence[Tensor]
    ) -> list[Draft]:
        probs = rows_to_fill(requests, self._vocab_size)
        with _ERRORS:
            drafted = self._native.draft(
                self._pool,
                [cache.native for cache in caches],
                [native_chain(request) for request in requests],
                [some.float().contiguous().numpy() for some in states],
                [rows.numpy() for rows in probs],
            )
        return drafts_of(drafted, probs)
