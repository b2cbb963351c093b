"""From a checkpoint to the kernels: the shape by their names, the weights chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from forerun.models.architecture import Architecture
from forerun.models.layouts import Fused
from forerun.models.rope import frequencies
from forerun.models.sources import Source

# Of published weights, read at a time: they are packed and forgotten.
CHUNK_BYTES = 8 * 2**20

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def describe_shape(shape: Architecture, precision: str, group: int) -> dict[str, Any]:
    """The shape as the kernels take it."""
    gpt2 = shape.family == "gpt2"
    inverse, scale = (torch.empty(0), 1.0) if gpt2 else frequencies(shape)
    return {
        **vars(shape),
        "precision": precision,
        "head_precision": "int8" if precision == "int4" else precision,
        "group": group,
        "activation": ACTIVATIONS[shape.activation],
        "gated": not gpt2,
        "layer_norm": gpt2,
        "windows": [window or 0 for window in shape.windows],
        "inverse_frequencies": inverse.tolist(),
        "rotary_scale": scale,
    }


def chunks(tensor: Fused, source: Source, keys: dict[str, str]) -> Iterator[tuple[int, Tensor]]:
    """Rows of a tensor with the index of the first, read chunk by chunk from its published parts.

    Args:
        keys: of the source, by published key.
    """
    before = 0
    for part in tensor.parts:
        columns = math.prod(part.shape) // max(part.rows, 1)
        step = max(CHUNK_BYTES // (4 * max(columns, 1)), 1)
        for start in range(0, part.rows, step):
            stop = min(start + step, part.rows)
            chunk = source.slice(keys[part.key], int(part.transposed), start, stop)
            if chunk.dtype not in (torch.float32, torch.bfloat16, torch.float16):
                chunk = chunk.float()
            yield before + start, (chunk.t() if part.transposed else chunk).contiguous()
        before += part.rows
