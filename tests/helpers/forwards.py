"""Running token ids on a model and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
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


def most_likely(model: Any, prompt: Sequence[int], text: Sequence[int]) -> list[int]:
    """The most likely token of a model of transformers at each place of a text, after all that stands
    before it: where that is the text itself, it is the greedy one, by induction."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *text[:-1]]])).logits[0, len(prompt) - 1 :]
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens
