"""The forward of an EAGLE-3 head under a reading (arXiv 2503.01840)."""

from __future__ import annotations

from collections.abc import Callable

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
from forerun.export.readings import Eagle3Reading
from forerun.export.sizes import Sizes


def fused(weights: Weights, reading: Eagle3Reading, text: Text, eps: float) -> Tensor:
    """Fused features that an EAGLE-3 head starts from, [n, H]."""
    parts = [text.hidden[layer] for layer in reading.hidden_layers]
    if reading.fc_norm:
        names = [f"fc_norm.{index}.weight" for index in range(len(parts))]
        parts = [
            norm(part, weights.get(name, torch.ones(part.shape[-1])), eps)
            for part, name in zip(parts, names, strict=True)
        ]
    features = torch.cat(parts, -1)
    if reading.norm_before_fc:
        features = norm(features, weights["input_norm.weight"], eps)
    return functional.linear(
        features, weights["fc.weight"], weights["fc.bias"] if reading.fc_bias else None
    )


def eagle3_forward(
    weights: Weights,
    sizes: Sizes,
    reading: Eagle3Reading,
    text: Text,
    rotation: Callable[[Tensor], tuple[Tensor, Tensor]],
    steps: int = 3,
) -> Drafted:
    """Drafts of an EAGLE-3 head after every token of a text, `steps` deep.

    Later steps read the text's own tokens in place of drafts (the training-time test). Row t of step s
    has read the features up to t and the tokens up to t + 1 + s, and drafts the next token.
    """
    own = weights.get("embed_tokens.weight")
    embeds = text.embed(text.token_ids) if own is None else own[text.token_ids]
    layers = [
        Layer(
            weights,
            index,
            sizes,
            rotation,
            activation=reading.activation,
            bias=reading.qkv_bias,
        )
        for index in range(sizes.num_layers)
    ]
    pasts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]
    states, logits, follows = fused(weights, reading, text, sizes.norm_eps)[:-1], [], []
    for step in range(steps):
        count = len(text) - 1 - step
        states = states[:count]
        for layer, past in zip(layers, pasts, strict=True):
            states = _eagle3_layer(
                layer, past, reading, states, embeds[1 + step : 1 + step + count], step
            )
        output = norm(states, weights["norm.weight"], sizes.norm_eps)
        logits.append(head_logits(weights, reading.lm_head, output, text))
        follows.append(torch.arange(1 + step, len(text)))
        states = output if reading.norm_output else states
    rows = torch.cat(logits)
    if reading.lm_head == "target" and sizes.draft_vocab_size < rows.shape[-1]:
        rows = rows[:, target_ids_of(weights, reading.draft_ids, sizes.draft_vocab_size)]
    return Drafted(
        rows, target_ids_of(weights, reading.draft_ids, rows.shape[-1]), torch.cat(follows)
    )


def _eagle3_layer(
    layer: Layer,
    past: list[tuple[Tensor, Tensor]],
    reading: Eagle3Reading,
    states: Tensor,
    embeds: Tensor,
    step: int,
) -> Tensor:
    """One layer at one step.

    A row sees the first step's rows up to itself, and of later steps only its own chain.
    """
    residual = states
    if layer.index == 0:
        normed = layer.normed("hidden_norm", states)
        residual = normed if reading.norm_before_residual else states
        inputs = torch.cat((layer.normed("input_layernorm", embeds), normed), -1)
    else:
        inputs = layer.normed(reading.later_norm, states)
    places = torch.arange(len(states))
    past.append(layer.keys_values(inputs, places + step))
    parts = []
    for earlier, (keys, values) in enumerate(past):
        columns = torch.arange(keys.shape[1])
        seen = columns <= places[:, None] if earlier == 0 else columns == places[:, None]
        if reading.window is not None:
            seen = seen & (columns + earlier > places[:, None] + step - reading.window)
        parts.append((keys, values, seen))
    return layer.finish(softmax_over(layer.queries(inputs, places + step), parts), residual)
