"""What the kernels are asked for when they draft whole chains."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any

from forerun import _native
from forerun.core import Drawing, Sequence


@dataclass(frozen=True)
class ChainRequest:
    """One chain to draft.

    Args:
        row: of the cache.
        pending: tokens of the text that the row lacks, the newest at least.
        limit: tokens to draft at most, at least 1.
        drawing: how to pick them.
        text: whose text it is; its parameters must not adjust logits.
    """

    row: int
    pending: Several[int]
    limit: int
    drawing: Drawing
    text: Sequence

    def native(self) -> Any:
        """The same for the kernels."""
        text, params = self.text, self.text.params
        return _native.kernels.DraftChain(
            self.row,
            self.pending,
            self.limit,
            list(text.stop_token_ids),
            self.drawing.value,
            (params.temperature, params.top_k, params.top_p, params.min_p),
            text.seed % 2**64,
            len(text),
        )
