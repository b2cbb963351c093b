"""What every decoder shares: who sees whom, and attention over the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kv_cache import Appending


@dataclass(frozen=True)
class Sight:
    """Which slots the new tokens of a forward pass see.

    Attributes:
        first: slots before this one are seen by no token and are not read.
        mask: additive, [B, 1, n, m]; None where every token sees every slot read, or `causal`.
        causal: whether the tokens are the whole text, so that attention can mask by itself.
    """

    first: int
    mask: Tensor | None
    causal: bool


def sight(
    appending: Appending, tree_mask: Tensor | None, window: int | None, dtype: torch.dtype
) -> Sight:
    """Work out who sees whom.

    Args:
        appending: the new tokens' place in the cache.
        tree_mask: bool [B, n, m] over each row's last m - n slots and its new tokens; None: causal.
        window: a token at position i sees positions above i - window only; None: no limit.
        dtype: of the additive mask.
    """
    places = (place for row in appending.host_positions for place in row if place >= 0)
    lowest = min(places, default=0)
    # A slot's position never exceeds its index, so these slots are out of every token's window.
    first = 0 if window is None else max(0, lowest + 1 - window)
    width = appending.positions.shape[1]
    if tree_mask is None:
        if width == 1 and appending.even:
            return Sight(first, None, False)
        fits = window is None or appending.total <= window
        if max(appending.starts) == 0 and appending.total == width and fits:
            return Sight(0, None, True)
    visible = _visible(appending, tree_mask, first)
    if window is not None:
        slots = appending.slot_positions(first)
        visible &= slots[:, None, :] > (appending.positions - window)[:, :, None]
    # Padding is thrown away later, but a row that sees nothing would make NaN of it.
    visible[:, :, 0] |= appending.positions < 0
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return Sight(first, mask.masked_fill_(~visible, -torch.inf)[:, None], False)


def _visible(appending: Appending, tree_mask: Tensor | None, first: int) -> Tensor:
    """Bool [B, n, total - first]: which slots each new token sees, windows aside."""
    device = appending.positions.device
    width = appending.positions.shape[1]
    slots = torch.arange(first, appending.total, device=device)
    starts = torch.tensor(appending.starts, device=device)[:, None]
    if tree_mask is None:
        own = starts + torch.arange(width, device=device)
        return slots <= own[:, :, None]
    columns = tree_mask.shape[-1]
    ends = starts + torch.tensor(appending.counts, device=device)[:, None]
    column = slots[None, :] - (starts - (columns - width))
    index = column.clamp(0, columns - 1)[:, None, :].expand(-1, width, -1)
    inside = tree_mask.to(device).gather(2, index)
    return torch.where(column[:, None, :] < 0, True, inside) & (slots < ends)[:, None, :]


def attend(query: Tensor, keys: Tensor, values: Tensor, seen: Sight, scale: float) -> Tensor:
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
