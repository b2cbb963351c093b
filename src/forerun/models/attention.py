"""What every decoder shares: which token sees which, and attention over the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kv_cache import Appending


@dataclass(frozen=True)
class Visibility:
    """Which slots the new tokens of a forward pass see.

    Attributes:
        first: slots before this one are seen by no token and are not read.
        mask: additive, [B, 1, n, m]; None where every token sees every slot read, or `causal`.
        causal: whether the tokens are the whole text, so that attention can mask by itself.
    """

    first: int
    mask: Tensor | None
    causal: bool


def visibility(appending: Appending, window: int | None, dtype: torch.dtype) -> Visibility:
    """Which slots the tokens of a batch see.

    Args:
        appending: where the new tokens lie in the cache.
        window: a token at position i sees positions above i - window only; None: no limit.
        dtype: of the additive mask.
    """
    batch = appending.batch
    # A slot's position never exceeds its index, so these slots are out of every token's window.
    first = 0 if window is None else max(0, min(map(min, batch.positions)) + 1 - window)
    if batch.tree_mask is None:
        if batch.width == 1 and appending.even:
            return Visibility(first, None, False)
        fits = window is None or appending.total <= window
        if max(appending.starts) == 0 and appending.total == batch.width and fits:
            return Visibility(0, None, True)
    visible = _visible(appending, first)
    if window is not None:
        slots = appending.slot_positions(first)
        visible &= slots[:, None, :] > (appending.positions - window)[:, :, None]
    if not batch.even:
        # Padding is thrown away later, but a row that sees nothing would make NaN of it.
        visible[:, :, 0] |= appending.positions < 0
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return Visibility(first, mask.masked_fill_(~visible, -torch.inf)[:, None], False)


def _visible(appending: Appending, first: int) -> Tensor:
    """Bool [B, n, total - first]: which slots each new token sees, windows aside."""
    batch, device = appending.batch, appending.positions.device
    slots = torch.arange(first, appending.total, device=device)
    bounds = [
        appending.starts,
        [s + n for s, n in zip(appending.starts, batch.counts, strict=True)],
    ]
    starts, ends = torch.tensor(bounds, device=device)[:, :, None]
    if batch.tree_mask is None:
        own = starts + torch.arange(batch.width, device=device)
        causal: Tensor = slots <= own[:, :, None]
        return causal
    tree_mask = torch.from_numpy(batch.tree_mask).to(device)
    columns = tree_mask.shape[-1]
    column = slots[None, :] - (starts - (columns - batch.width))
    index = column.clamp(0, columns - 1)[:, None, :].expand(-1, batch.width, -1)
    inside = tree_mask.gather(2, index)
    visible: Tensor = torch.where(column[:, None, :] < 0, True, inside) & (slots < ends)[:, None, :]
    return visible


def attend(query: Tensor, keys: Tensor, values: Tensor, seen: Visibility, scale: float) -> Tensor:
    """Attention of query [B, heads, n, d] over keys, values [B, kv_heads, m, d].

    Returns:
        [B, n, heads * d].
    """
    batch, heads, width, size = query.shape
    groups = heads // keys.shape[1]
    if seen.causal:
        out = functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=scale, enable_gqa=groups > 1
        )
    else:
        # The heads that share keys go in as more queries: far faster than repeating the keys.
        mask = seen.mask if seen.mask is None or groups == 1 else seen.mask.repeat(1, 1, groups, 1)
        folded = query.reshape(batch, heads // groups, groups * width, size)
        out = functional.scaled_dot_product_attention(
            folded, keys, values, attn_mask=mask, scale=scale
        )
        out = out.reshape(batch, heads, width, size)
    return out.transpose(1, 2).reshape(batch, width, heads * size)
