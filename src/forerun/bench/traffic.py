"""Bytes and multiply-adds of a forward, counted from the model's shape."""

from __future__ import annotations

from forerun.models.architecture import Architecture
from forerun.models.cpu import CpuModel


def weight_bytes(model: CpuModel) -> int:
    """Bytes of packed weights that every forward with logits reads: all but embedding tables."""
    shape, wide = model.shape, 4 if model.precision == "fp32" else 2
    tables = 0 if shape.tied else shape.vocab_size
    if shape.family == "gpt2":
        tables += shape.max_context
    return model.weight_bytes - tables * shape.hidden_size * wide


def cache_bytes(model: CpuModel, tokens: int) -> int:
    """Bytes of keys and values of `tokens` tokens, each read once per forward."""
    shape, wide = model.shape, 4 if model.precision == "fp32" else 2
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * wide * tokens


def forward_bytes(model: CpuModel, n: int, context: int) -> int:
    """Bytes that a forward of `n` tokens after `context` others reads."""
    return weight_bytes(model) + cache_bytes(model, context + n)


def matrix_parameters(shape: Architecture, *, head: bool) -> int:
    """Weights that each token is multiplied with."""
    mixed = shape.num_heads * shape.head_dim
    qkv = mixed + 2 * shape.num_kv_heads * shape.head_dim
    gates = 2 if shape.family == "gpt2" else 3
    layer = shape.hidden_size * (qkv + mixed + gates * shape.intermediate_size)
    return shape.num_layers * layer + (shape.vocab_size * shape.hidden_size if head else 0)


def multiply_adds(shape: Architecture, n: int, context: int, *, head: bool) -> int:
    """Multiply-adds of a forward of `n` tokens after `context` others, attention included."""
    seen = n * context + n * (n + 1) // 2
    attention = 2 * shape.num_layers * shape.num_heads * shape.head_dim * seen
    return n * matrix_parameters(shape, head=head) + attention
