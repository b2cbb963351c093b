"""Architecture of a decoder, read from the config of any family that forerun's own decoder runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from forerun.costs.shapes import ModelShape
from forerun.errors import CheckpointError, ConfigError, shown

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_fast": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of the text."""


@dataclass(frozen=True, kw_only=True)
class Architecture(ModelShape):
    """Architecture of a decoder: its dimensions, windows, norms and biases.

    Attributes:
        family: `gpt2` or one of `LLAMA_LIKE`.
        windows: number of tokens that each layer sees, the token itself and those before it; None
            for all.
        query_key_norm: True if queries and keys are normed head by head (Qwen3).
        attention_bias: True if the query, key and value projections have a bias.
        output_bias: True if the attention's output projection has a bias.
        frequency_factors: divisors of the rotary embedding's frequencies, one for each.
        config: the config of transformers that it was read from.
    """

    family: str
    max_context: int
    norm_eps: float
    activation: str
    windows: tuple[int | None, ...]
    query_key_norm: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    frequency_factors: tuple[float, ...] = ()
    config: Any = field(default=None, repr=False, compare=False)


def native(config: Any) -> bool:
    """True if a config of transformers describes a model that runs on forerun's own decoder."""
    if config.model_type == "gpt2":
        exotic = config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights
        plain = not (exotic or config.add_cross_attention or config.reorder_and_upcast_attn)
        return plain and config.activation_function in ACTIVATIONS
    if config.model_type not in LLAMA_LIKE:
        return False
    rope = config.rope_parameters or {}
    known_rope = rope.get("rope_type") in ROPE_TYPES and rope.get("partial_rotary_factor", 1) == 1
    return known_rope and config.hidden_act in ACTIVATIONS


def read_architecture(config: Any) -> Architecture:
    """Read the architecture from a config of transformers; `native(config)` must hold.

    Raises:
        CheckpointError: for numbers that contradict each other.
    """
    gpt2 = config.model_type == "gpt2"
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    values = {
        "num_kv_heads": heads,
        "head_dim": config.hidden_size // heads,
        "windows": (None,) * layers,
        **(_read_gpt2(config) if gpt2 else _read_llama_like(config)),
    }
    if heads % values["num_kv_heads"]:
        raise CheckpointError(
            f"num_attention_heads is {heads}; it must be a multiple of "
            f"num_key_value_heads, {values['num_kv_heads']}."
        )
    try:
        shape = Architecture(
            family=config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=layers,
            num_heads=heads,
            max_context=config.max_position_embeddings,
            tied=bool(config.tie_word_embeddings),
            gated=not gpt2,
            config=config,
            **values,
        )
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
    if gpt2 and shape.hidden_size % shape.num_heads:
        raise CheckpointError(
            f"n_embd is {shape.hidden_size}; it must be a multiple of n_head, {shape.num_heads}."
        )
    if not gpt2 and shape.head_dim % 2:
        raise CheckpointError(
            f"head_dim is {shape.head_dim}; it must be even, so that pairs of numbers are rotated."
        )
    return shape


def sliding_window(config: Any) -> int | None:
    """Number of tokens that the sliding layers of a config of transformers see; None if it has none.

    Raises:
        CheckpointError: for a window outside [1, 2**30]: libraries disagree on the meaning of 0.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or (kinds and "sliding_attention" not in kinds):
        return None
    if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 2**30:
        raise CheckpointError(
            f"sliding_window is {shown(window)}; it must be an integer from 1 to 2**30, or null."
        )
    return window


def _read_gpt2(config: Any) -> dict[str, Any]:
    return {
        "intermediate_size": config.n_inner or 4 * config.n_embd,
        "norm_eps": config.layer_norm_epsilon,
        "activation": config.activation_function,
        **dict.fromkeys(("attention_bias", "output_bias", "mlp_bias"), True),
    }


def _read_llama_like(config: Any) -> dict[str, Any]:
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "intermediate_size": config.intermediate_size,
        "num_kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": size,
        "norm_eps": config.rms_norm_eps,
        "activation": config.hidden_act,
        **LLAMA_LIKE[config.model_type](config),
    }


def _windows(config: Any) -> tuple[int | None, ...]:
    """Windows by layer, for families whose config names the layers that have one."""
    window = sliding_window(config)
    return tuple(window if kind == "sliding_attention" else None for kind in config.layer_types)


LLAMA_LIKE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "llama": lambda config: {
        "attention_bias": bool(config.attention_bias),
        "output_bias": bool(config.attention_bias),
        "mlp_bias": bool(config.mlp_bias),
    },
    "mistral": lambda config: {"windows": (sliding_window(config),) * config.num_hidden_layers},
    "qwen2": lambda config: {"attention_bias": True, "windows": _windows(config)},
    "qwen3": lambda config: {
        "query_key_norm": True,
        "attention_bias": bool(config.attention_bias),
        "output_bias": bool(config.attention_bias),
        "windows": _windows(config),
    },
}
"""Families that publish Llama's tensors, with their differences from the plainest decoder."""
