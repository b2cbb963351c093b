"""Attention over the cache, its masks, and norms, for all decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import AttentionShape
from forerun.kv_cache import Appending
from forerun.models.block_choice import BlockChoice, Chosen
from forerun.models.families import SWIGLU_ALPHA, SWIGLU_LIMIT
from forerun.models.rope import Rotation, rotate

CacheParts = Mapping[str, tuple[Tensor, Tensor | None]]
"""Weights and biases of a layer by short name, such as `qkv`."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """The slots that the new tokens of a forward pass see.

    Attributes:
        first: slots before this one are not read, except for sinks.
        mask: additive, [B, 1, n, m], for the slots from `first` on; None if every token sees all of
            them, or with `causal`.
        causal: True if the tokens are the whole text, so that the attention's own causal mask
            suffices.
        sinks: number of slots at the start that all tokens read besides.
        choice: blocks from which each head reads some besides; None for none.
    """

    first: int
    mask: Tensor | None
    causal: bool
    sinks: int = 0
    choice: BlockChoice | None = None


def visibility(appending: Appending, window: int | None, dtype: torch.dtype) -> Visibility:
    """The slots that the tokens of a batch see.

    Args:
        appending: slots of the new tokens in the cache.
        window: the layer's window: a token at position i sees only positions above i - window;
            None: no limit. A view narrows it; tokens that the layer's own window hides are not read
            as sinks.
        dtype: type of the additive mask.
    """
    batch, view, sinks, blocks = appending.batch, appending.batch.view, 0, 0
    if view is not None:
        sinks, blocks = (view.sinks, view.blocks) if window is None else (0, 0)
        window = view.window if window is None else min(window, view.window)
    # A slot's position never exceeds its index, so these slots are out of every token's window.
    first = 0 if window is None else max(0, min(map(min, batch.positions)) + 1 - window)
    choice = None
    if blocks and window is not None:
        choice = BlockChoice.of(appending, sinks, window, blocks)
    # If sinks and window touch in some row, all slots are read, and the mask hides those not seen.
    apart = sinks if sinks < first else 0
    first = first if apart or not sinks else 0
    if batch.tree_mask is None:
        if batch.width == 1 and appending.even:
            return Visibility(first, None, False, apart, choice)
        fits = window is None or appending.total <= window
        if max(appending.starts) == 0 and appending.total == batch.width and fits:
            return Visibility(0, None, True)
    visible = _visible(appending, first)
    if window is not None:
        slots = appending.slot_positions(first)[:, None, :]
        near = slots > (appending.positions - window)[:, :, None]
        visible &= near | (slots < sinks)
    if not batch.even:
        # Padding is discarded later, but without any visible slot it would become NaN.
        visible[:, :, 0] |= appending.positions < 0
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    mask = mask.masked_fill_(~visible, -torch.inf)[:, None]
    return Visibility(first, mask, False, apart, choice)


def _visible(appending: Appending, first: int) -> Tensor:
    """Visibility of slots for each new token, bool [B, n, total - first], without windows."""
    batch, device = appending.batch, appending.positions.device
    slots = torch.arange(first, appending.total, device=device)
    starts, counts = torch.tensor([appending.starts, batch.counts], device=device)[:, :, None]
    if batch.tree_mask is None:
        own = starts + torch.arange(batch.width, device=device)
        causal: Tensor = slots <= own[:, :, None]
        return causal
    tree_mask = torch.tensor(batch.tree_mask, device=device)
    columns = tree_mask.shape[-1]
    column = slots[None, :] - (starts - (columns - batch.width))
    index = column.clamp(0, columns - 1)[:, None, :].expand(-1, batch.width, -1)
    inside = tree_mask.gather(2, index)
    visible: Tensor = (
        torch.where(column[:, None, :] < 0, True, inside) & (slots < starts + counts)[:, None, :]
    )
    return visible


def attend_apart(
    query: Tensor,
    parts: Sequence[tuple[Tensor, Tensor]],
    mask: Tensor | None,
    scale: float,
    chosen: Chosen | None = None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of query [B, heads, n, d] over several separate parts of the cache, read in place.

    Args:
        query: as in `attend`.
        parts: keys and values [B, kv_heads, m, d] of each part.
        mask: additive, for the last part; all tokens see the others.
        scale: factor on the scores.
        chosen: slots that each token reads besides.
        cap: bound c of the scores, by c tanh(x / c); 0 for none.
        sinks: scores [heads] of values of zeros that all tokens see.

    Returns:
        [B, n, heads * d].
    """
    batch, heads, width, size = query.shape
    folded = query.reshape(batch, parts[0][0].shape[1], -1, size) * scale
    scores = [soft_cap(folded @ keys.mT, cap) for keys, _ in parts]
    if mask is not None:
        scores[-1] = scores[-1] + mask.repeat(1, 1, folded.shape[2] // width, 1)
    if chosen is not None:
        scores.append(soft_cap(chosen.scores(folded), cap))
    if sinks is not None:
        of_groups = sinks.view(1, folded.shape[1], -1, 1).repeat_interleave(width, 2)
        scores.append(of_groups.expand(batch, -1, -1, -1))
    weights = torch.cat(scores, dim=-1).softmax(dim=-1)
    shares = torch.split(weights, [part.shape[-1] for part in scores], dim=-1)
    mixes = [share @ values for share, (_, values) in zip(shares, parts, strict=False)]
    if chosen is not None:
        mixes.append(chosen.mix(shares[len(parts)]))
    mixed = torch.stack(mixes).sum(0)
    return mixed.reshape(batch, heads, width, size).transpose(1, 2).reshape(batch, width, -1)


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
        # Heads that share keys become additional queries: far faster than repeating the keys.
        mask = seen.mask if seen.mask is None or groups == 1 else seen.mask.repeat(1, 1, groups, 1)
        folded = query.reshape(batch, heads // groups, groups * width, size)
        out = functional.scaled_dot_product_attention(
            folded, keys, values, attn_mask=mask, scale=scale
        )
        out = out.reshape(batch, heads, width, size)
    return out.transpose(1, 2).reshape(batch, width, heads * size)


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """The state that all layers of one forward pass share.

    Attributes:
        appending: slots of the new tokens in the cache.
        visible: the slots that they see, by sliding window.
    """

    appending: Appending
    visible: Mapping[int | None, Visibility]

    def attention(
        self,
        layer: int,
        shape: AttentionShape,
        parts: CacheParts,
        hidden: Tensor,
        rotation: Rotation | None,
    ) -> Tensor:
        """Self-attention of one layer on normed hidden states [B, n, hidden_size].

        Its parts are `qkv`, `output` and, if present, `q_norm`, `k_norm` and `sinks`.
        """
        fused = functional.linear(hidden, *parts["qkv"])
        heads = fused.view(*fused.shape[:2], -1, shape.head_dim)
        sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        query, key, value = torch.split(heads, sizes, dim=2)
        if "q_norm" in parts:
            query = _norm_heads(query, *parts["q_norm"], shape.norm_eps)
            key = _norm_heads(key, *parts["k_norm"], shape.norm_eps)
        query, key, value = (vectors.transpose(1, 2) for vectors in (query, key, value))
        self.appending.observe(layer, query)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        self.appending.write(layer, key, value)
        query = self.appending.turned(query)
        sinks = parts["sinks"][0] if "sinks" in parts else None
        mixed = self._mix(layer, shape, query, sinks)
        return functional.linear(mixed, *parts["output"])

    def _mix(
        self, layer: int, shape: AttentionShape, query: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """Values that queries [B, heads, n, d] attend to, [B, n, heads * d]."""
        visible, scale = self.visible[shape.window], shape.scale or shape.head_dim**-0.5
        parts_read = [self.appending.read(layer, visible.first)]
        if visible.sinks:
            parts_read.insert(0, self.appending.read(layer, 0, visible.sinks))
        chosen = (
            None if visible.choice is None else visible.choice.read(self.appending, layer, query)
        )
        if chosen is None and sinks is None and not visible.sinks and not shape.score_cap:
            return attend(query, *parts_read[0], visible, scale)
        mask = visible.mask
        if visible.causal:
            width = query.shape[2]
            mask = torch.full((width, width), -torch.inf, dtype=query.dtype, device=query.device)
            mask = mask.triu(1)[None, None]
        return attend_apart(query, parts_read, mask, scale, chosen, shape.score_cap, sinks)


def _norm_heads(heads: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Norm of heads [B, n, heads, d], each by itself or, by as many weights, all together."""
    if weight.shape[0] == heads.shape[-1]:
        return norm(heads, weight, bias, eps)
    return norm(heads.flatten(2), weight, bias, eps).view_as(heads)


def norm(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centred: bool = False
) -> Tensor:
    """Layer norm if there is a bias or `centred`; else a root mean square norm (arXiv 1910.07467), in float32
    at least.
    """
    if centred or bias is not None:
        return functional.layer_norm(hidden, weight.shape, weight, bias, eps)
    if hidden.dtype in (torch.float32, torch.float64):
        return functional.rms_norm(hidden, weight.shape, weight, eps)
    normed = functional.rms_norm(hidden.float(), weight.shape, eps=eps)
    # As transformers does, so that both agree in 16 bits: only weights that an offset is added to are wider.
    if weight.dtype is torch.float32:
        return (normed * weight).to(hidden.dtype)
    return normed.to(hidden.dtype) * weight


def soft_cap(values: Tensor, cap: float) -> Tensor:
    """Values bounded to (-cap, cap) by a hyperbolic tangent; unchanged for a cap of 0."""
    return cap * torch.tanh(values / cap) if cap else values


def apply_gate(function: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """The function of the first half of [..., 2n], times the second half."""
    gate, up = hidden.chunk(2, dim=-1)
    return function(gate) * up


def clamped_swiglu(hidden: Tensor) -> Tensor:
    """The gated activation of gpt-oss, of [..., 2n]: see `forerun.models.families.CLAMPED_SWIGLU`."""
    gate, up = hidden.chunk(2, dim=-1)
    gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return gate * (SWIGLU_ALPHA * gate).sigmoid() * (up + 1)
