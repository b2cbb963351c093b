"""What the kernels are asked for when they draft whole chains."""

from __future__ import annotations

from typing import Any

from forerun import _native
from forerun.contracts import ChainRequest


def native_chain(chain: ChainRequest) -> Any:
    """A chain to draft, for the kernels."""
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
    )
