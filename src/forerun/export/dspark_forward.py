"""The forward of a DSpark head under a reading (DeepSpec's published layout)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from forerun.export.forwards import (
    Drafted,
    Layer,
    Text,
    Weights,
    head_logits,
    norm,
    softmax_over,
    target_ids_of,
)
from forerun.export.readings import DSparkReading
from forerun.export.sizes import Sizes


def dspark_forward(
    weights: Weights,
    sizes: Sizes,
    reading: DSparkReading,
    text: Text,
    rotation: Callable[[Tensor], tuple[Tensor, Tensor]],
    *,
    mask_token_id: int,
    block_size: int,
    anchors: Sequence[int],
) -> Drafted:
    """Drafts of a DSpark head after some tokens of a text, the anchors.

    The Markov head reads the text's own token before each draft.
    """
    context = torch.cat([text.hidden[layer] for layer in reading.hidden_layers], -1)
    context = norm(
        functional.linear(context, weights["fc.weight"]),
        weights["hidden_norm.weight"],
        sizes.norm_eps,
    )
    own = weights.get("embed_tokens.weight") if reading.embedding == "own" else None
    logits, follows = [], []
    for anchor in anchors:
        block = torch.full((block_size,), mask_token_id)
        block[0] = text.token_ids[anchor]
        states = text.embed(block) if own is None else own[block]
        for index in range(sizes.num_layers):
            layer = Layer(weights, index, sizes, rotation)
            states = _dspark_layer(layer, reading, context[:anchor], states, anchor)
        output = norm(states, weights["norm.weight"], sizes.norm_eps)[
            not reading.sample_from_anchor :
        ]
        places = torch.arange(anchor, min(anchor + len(output), len(text) - 1))
        rows = head_logits(weights, reading.lm_head, output[: len(places)], text)
        logits.append(_with_markov(weights, reading, rows, text.token_ids[places], sizes))
        follows.append(places)
    rows = torch.cat(logits)
    return Drafted(
        rows, target_ids_of(weights, reading.draft_ids, rows.shape[-1]), torch.cat(follows)
    )


def _with_markov(
    weights: Weights, reading: DSparkReading, logits: Tensor, before: Tensor, sizes: Sizes
) -> Tensor:
    """Logits with the vanilla Markov head's bias from the token before each draft."""
    if reading.lm_head == "target" and sizes.draft_vocab_size < logits.shape[-1]:
        logits = logits[:, target_ids_of(weights, reading.draft_ids, sizes.draft_vocab_size)]
    first = weights.get("markov_head.markov_w1.weight")
    if first is None:
        return logits
    return logits + first[before] @ weights["markov_head.markov_w2.weight"].mT


def _dspark_layer(
    layer: Layer, reading: DSparkReading, context: Tensor, states: Tensor, anchor: int
) -> Tensor:
    """One layer over a block, whose slots see the context before the anchor and each other."""
    normed = layer.normed("input_layernorm", states)
    before, slots = torch.arange(anchor), anchor + torch.arange(len(states))
    seen_before = torch.ones(len(slots), anchor, dtype=torch.bool)
    seen = torch.ones(len(slots), len(slots), dtype=torch.bool)
    if reading.window is not None:
        seen_before = before > slots[:, None] - reading.window
        seen = slots > slots[:, None] - reading.window
    if reading.causal:
        seen = seen & (slots <= slots[:, None])
    parts = [
        (*layer.keys_values(context, before), seen_before),
        (*layer.keys_values(normed, slots), seen),
    ]
    return layer.finish(softmax_over(layer.queries(normed, slots), parts), states)
