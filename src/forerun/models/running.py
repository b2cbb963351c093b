"""Running models on ragged rows: padding, positions and chunked prefill, for target and drafters alike."""

from __future__ import annotations

from collections.abc import Sequence as Several

import torch
from torch import Tensor

from forerun.contracts import Cache, CausalLM, LogitsFor
from forerun.core import ForwardOutput
from forerun.models.cpu import CpuCache, CpuModel

PREFILL_CHUNK = 512


def run_rows(
    model: CausalLM,
    cache: Cache,
    rows: Several[int],
    token_ids: Several[Several[int]],
    *,
    positions: Several[Several[int]] | None = None,
    tree_mask: Tensor | None = None,
    hidden_layers: Several[int] = (),
    logits_for: LogitsFor = "all",
    layers: range | None = None,
    hidden_in: Tensor | None = None,
) -> ForwardOutput:
    """Append `token_ids[i]` to row `rows[i]` of the cache in one forward pass.

    Positions go on from each row's length unless given; they are to be given with `layers`, which may
    hold more tokens than others. Rows may differ in their number of tokens; what the shorter ones
    return beyond theirs is padding, as `hidden_in` [B, longest, hidden_size] is there.
    """
    assert layers is None or positions is not None, "a row has no one length where layers run apart"
    if isinstance(model, CpuModel) and isinstance(cache, CpuCache):
        return model.run_rows(
            cache,
            rows,
            token_ids,
            positions=positions,
            tree_mask=tree_mask,
            hidden_layers=hidden_layers,
            logits_for=logits_for,
            layers=layers,
            hidden_in=hidden_in,
        )
    width = max(len(tokens) for tokens in token_ids)
    padded, places = [], []
    for index, tokens in enumerate(token_ids):
        missing = width - len(tokens)
        if positions is None:
            start = cache.length(rows[index])
            place: Several[int] = range(start, start + len(tokens))
        else:
            place = positions[index]
        padded.append([*tokens, *[0] * missing])
        places.append([*place, *[-1] * missing])
    return model.forward(
        torch.tensor(padded, device=model.device),
        torch.tensor(places, device=model.device),
        cache.view(rows),
        tree_mask=tree_mask,
        hidden_layers=hidden_layers,
        logits_for=logits_for,
        layers=layers,
        hidden_in=hidden_in,
    )


def prefill(model: CausalLM, cache: Cache, row: int, token_ids: Several[int]) -> None:
    """Append committed tokens to one row, chunk by chunk, without making logits."""
    for start in range(0, len(token_ids), PREFILL_CHUNK):
        chunk = token_ids[start : start + PREFILL_CHUNK]
        run_rows(model, cache, [row], [chunk], logits_for="none")
