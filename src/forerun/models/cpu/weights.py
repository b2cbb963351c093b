"""From a checkpoint to the kernels: the shape in their words, the weights chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forerun.models.architecture import Architecture
from forerun.models.layouts import Fused, Published
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
    inverse, scale = (torch.empty(0), 1.0) if gpt2 else frequencies(shape.config, shape.head_dim)
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
    more = ("num_kv_heads", "head_dim", "max_context", "norm_eps", "query_key_norm", "tied")
    biases = ("attention_bias", "output_bias", "mlp_bias")
    return {
        **{name: getattr(shape, name) for name in (*sizes, *more, *biases)},
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


def chunks(tensor: Fused, source: Source, found: dict[str, str]) -> Iterator[tuple[int, Tensor]]:
    """Rows of one of our tensors with the index of the first, read from its published parts."""
    start = 0
    for part in tensor.parts:
        for chunk in _rows(part, source, found[part.key]):
            known = chunk.dtype in (torch.float32, torch.bfloat16, torch.float16)
            yield start, (chunk if known else chunk.float()).contiguous()
            start += len(chunk)


def _rows(part: Published, source: Source, key: str) -> Iterator[Tensor]:
    columns = part.shape[0] if part.transposed else int(np.prod(part.shape[1:]))
    step = max(CHUNK_BYTES // (4 * max(columns, 1)), 1)
    for start in range(0, part.rows, step):
        stop = min(start + step, part.rows)
        if part.transposed:
            yield source.slice(key, 1, start, stop).t()
        else:
            yield source.slice(key, 0, start, stop)
