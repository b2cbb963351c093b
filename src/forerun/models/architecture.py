"""What a decoder's config.json says, in one set of names for every family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from forerun.errors import CheckpointError, shown

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
"""Rotary embeddings whose frequencies do not depend on the text's length."""


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder.

    Attributes:
        family: `llama`, `mistral`, `qwen2`, `qwen3` or `gpt2`.
        windows: by layer, how many tokens back it sees, its own included; None for all.
        query_key_norm: whether queries and keys are normalized head by head (Qwen3).
        attention_bias: of the query, key and value projections.
        output_bias: of the attention's output projection.
        config: the config of transformers that it was read from.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    norm_eps: float
    activation: str
    tied: bool
    windows: tuple[int | None, ...]
    query_key_norm: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    config: Any = field(default=None, repr=False, compare=False)


def native(config: Any) -> bool:
    """Whether a config of transformers describes a model that runs on our own decoders."""
    if config.model_type == "gpt2":
        exotic = config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights
        plain = not (exotic or config.add_cross_attention or config.reorder_and_upcast_attn)
        return plain and config.activation_function in ACTIVATIONS
    if config.model_type not in ("llama", "mistral", "qwen2", "qwen3"):
        return False
    rope = config.rope_parameters or {}
    known_rope = rope.get("rope_type") in ROPE_TYPES and rope.get("partial_rotary_factor", 1) == 1
    return known_rope and config.hidden_act in ACTIVATIONS


def read_architecture(config: Any) -> Architecture:
    """The shape that a config of transformers describes; `native(config)` must hold.

    Raises:
        CheckpointError: for numbers that contradict each other.
    """
    family, heads = config.model_type, config.num_attention_heads
    gpt2 = family == "gpt2"
    # GPT-2 and, on three projections only, Qwen2 always have biases; Llama and Qwen3 have a switch.
    biases = gpt2 or (
        family in ("llama", "qwen3") and bool(getattr(config, "attention_bias", False))
    )
    head_dim = None if gpt2 else getattr(config, "head_dim", None)
    shape = Architecture(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=(config.n_inner or 4 * config.n_embd)
        if gpt2
        else config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=heads if gpt2 else config.num_key_value_heads or heads,
        head_dim=head_dim or config.hidden_size // heads,
        max_context=config.max_position_embeddings,
        norm_eps=config.layer_norm_epsilon if gpt2 else config.rms_norm_eps,
        activation=config.activation_function if gpt2 else config.hidden_act,
        tied=bool(config.tie_word_embeddings),
        windows=_windows(config),
        query_key_norm=family == "qwen3",
        attention_bias=biases or family == "qwen2",
        output_bias=biases,
        mlp_bias=gpt2 or (family == "llama" and bool(getattr(config, "mlp_bias", False))),
        config=config,
    )
    if shape.num_heads % shape.num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads is {shape.num_heads}; it must be a multiple of "
            f"num_key_value_heads, {shape.num_kv_heads}."
        )
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
    """How many tokens back the sliding layers of a config of transformers see; None where it has none.

    Raises:
        CheckpointError: for a number that is no window: libraries disagree on what 0 would mean.
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


def _windows(config: Any) -> tuple[int | None, ...]:
    layers: int = config.num_hidden_layers
    if config.model_type in ("llama", "gpt2"):
        return (None,) * layers
    window = sliding_window(config)
    kinds = ["sliding_attention"] * layers if config.model_type == "mistral" else config.layer_types
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
