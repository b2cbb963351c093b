"""Running token ids on a model and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from forerun.core import Batch


def run(
    model: Any,
    cache: Any,
    token_ids: Tensor | Sequence[Sequence[int]],
    rows: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """One forward pass over token ids [B, n], or lists of them, behind what the rows hold: the first
    rows of the cache unless others are named."""
    lists = token_ids.tolist() if isinstance(token_ids, Tensor) else token_ids
    named = range(len(lists)) if rows is None else rows
    return model.forward(Batch.after(cache, named, lists, **options), cache)
