"""Bytes and multiply-adds of a forward, counted from the model's shape."""

from __future__ import annotations

from typing import Any

from forerun.contracts import CausalLM
from forerun.errors import CheckpointError
from forerun.kv_cache.codes import bytes_per_value
from forerun.models.cpu import CpuModel
from forerun.models.hf import HFModel
from forerun.models.transformer import Transformer
from forerun.simulation.roofline import Traffic
from forerun.simulation.shapes import ModelShape

# Families whose feed-forward layers have two matrices; in all others a third one gates.
PLAIN = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt",
         "opt", "persimmon", "phi", "starcoder2")  # fmt: skip
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def shape_of(config: Any, name: str, tied: bool | None = None) -> ModelShape:
    """The dimensions in a config of transformers.

    Args:
        name: how messages call the model.
        tied: whether the output layer is the embedding, where the weights say other than the config.

    Raises:
        CheckpointError: for a config that lacks one, or has one for each layer.
    """
    text = config.get_text_config()

    def number(*names: str, default: int | None = None) -> int:
        found = [getattr(text, key, None) for key in names]
        value = next((entry for entry in found if entry is not None), default)
        if type(value) is not int:
            raise CheckpointError(
                f"the config of {name} has no single {names[0]} (it is {value!r}); "
                "give a known model or a count such as 70B instead."
            )
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    experts = number(*_EXPERTS, default=0)
    wide = number("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    return ModelShape(
        name,
        num_layers=number("num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=hidden // heads),
        intermediate_size=number("moe_intermediate_size", default=wide) if experts else wide,
        vocab_size=number("vocab_size"),
        tied=bool(text.tie_word_embeddings) if tied is None else tied,
        num_experts=experts,
        experts_per_token=number("num_experts_per_tok", default=0) if experts else 0,
        gated=text.model_type not in PLAIN,
    )


def traffic_of(model: CausalLM) -> Traffic:
    """What the forwards of a model read and compute.

    Raises:
        CheckpointError: as `shape_of`.
    """
    if isinstance(model, HFModel):
        shape = shape_of(model.model.config, model.name)
        return Traffic(shape, model.dtype.itemsize, model.dtype.itemsize)
    assert isinstance(model, CpuModel | Transformer)
    shape = shape_of(model.shape.config, model.name, model.shape.tied)
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
