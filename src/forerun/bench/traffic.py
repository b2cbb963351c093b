"""Bytes and multiply-adds of a forward, counted from the model's shape."""

from __future__ import annotations

from forerun.contracts import CausalLM
from forerun.costs.forwards import Traffic
from forerun.costs.precision import bytes_per_value
from forerun.costs.shapes import read_shape
from forerun.models.cpu import CpuModel
from forerun.models.hf import HFModel
from forerun.models.transformer import Transformer


def traffic_of(model: CausalLM) -> Traffic:
    """Bytes and FLOP of a model's forwards.

    Raises:
        CheckpointError: for a model of transformers whose dimensions are unknown.
    """
    if isinstance(model, HFModel):
        dimensions = read_shape(model.model.config, model.name)
        return Traffic(dimensions, model.dtype.itemsize, model.dtype.itemsize)
    assert isinstance(model, CpuModel | Transformer)
    shape = model.shape
    if isinstance(model, Transformer):
        wide = model.dtype.itemsize
        weights = float(wide)
    else:
        wide = 4 if model.precision == "fp32" else 2
        weights = weight_bytes(model) / shape.shared_parameters
    return Traffic(shape, weights, bytes_per_value(model.kv_dtype, shape.head_dim, wide))


def weight_bytes(model: CpuModel) -> int:
    """Bytes of packed weights that every forward with logits reads: all but embedding tables."""
    shape, wide = model.shape, 4 if model.precision == "fp32" else 2
    tables = 0 if shape.tied else shape.vocab_size
    if shape.family == "gpt2":
        tables += shape.max_context
    return model.weight_bytes - tables * shape.hidden_size * wide


def forward_bytes(model: CausalLM, n: int, context: int) -> float:
    """Bytes that a forward of `n` tokens after `context` others reads."""
    layers, attention = traffic_of(model).alone(n, context)
    return float(layers.bytes_moved + attention.bytes_moved)


def multiply_adds(model: CausalLM, n: int, context: int, *, head: bool = True) -> float:
    """Multiply-adds of a forward of `n` tokens after `context` others, attention included.

    Args:
        head: whether there are logits.
    """
    traffic = traffic_of(model)
    layers, attention = traffic.alone(n, context)
    left_out = 0 if head else n * traffic.shape.vocab_size * traffic.shape.hidden_size
    return float(layers.flops + attention.flops) / 2 - left_out
