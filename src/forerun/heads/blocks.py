"""A decoder layer of a head, composed of modules: the same on torch and on the CPU kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import AttentionShape, Layer, LayerShape, Modules
from forerun.errors import CheckpointError, UnsupportedModelError, shown
from forerun.kv_cache.fit import check_row
from forerun.models.architecture import LLAMA_LIKE, ROPE_TYPES, Architecture, read_architecture
from forerun.models.config import DecoderConfig, check_config, one_line
from forerun.models.rope import frequencies

# Keys of a head's config that describe its layers.
_KEYS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "max_position_embeddings"),
    *("rope_theta", "attention_bias", "mlp_bias", "vocab_size"),
)
_SIZES = {*_KEYS[:4], "max_position_embeddings", "vocab_size"}
# Keys that transformers reads in several ways.
_SPECIAL = {
    *("rope_scaling", "rope_parameters"),
    *("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
}

# Keys that change a forward without changing any tensor, and are not supported, with the values that leave
# the forward unchanged. A missing key does so as well.
_UNCHANGED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("rope_is_neox_style", "is_neox_style", "use_rope"), (True,)),
    **dict.fromkeys(("rope_interleaved", "rope_interleave", "rope_traditional"), (False,)),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), (1.0,)),
    **dict.fromkeys(("no_rope_layers", "attention_chunk_size", "clip_qkv"), ()),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), ()),
    **dict.fromkeys(("query_pre_attn_scalar", "attention_multiplier"), ()),
    **dict.fromkeys(("residual_multiplier", "embedding_multiplier", "scale_emb"), (1.0,)),
    **dict.fromkeys(("logit_scale", "logits_scaling", "embedding_scale"), (1.0,)),
    **dict.fromkeys(("use_parallel_residual", "parallel_attn", "parallel_residual"), (False,)),
    # Keys of EAGLE heads made by NVIDIA's Model Optimizer.
    **dict.fromkeys(("use_input_layernorm_in_first_layer", "use_last_layernorm"), (True,)),
    "use_mtp_layernorm": (False,),
    "parallel_draft_step": (1,),
}
_NESTED = ("rope_parameters", "rope_scaling", "eagle_config", "dflash_config")


def refuse_other_forwards(config: Mapping[str, Any], where: str) -> None:
    """Refuse a head whose config asks for an unsupported forward, with which it would silently draft badly.

    Args:
        config: the config.
        where: source of the config, for messages.

    Raises:
        UnsupportedModelError: naming the key.
    """
    for key, value in config.items():
        if key in _NESTED and isinstance(value, dict):
            refuse_other_forwards(value, where)
        elif key in _UNCHANGED and value is not None and value not in _UNCHANGED[key]:
            raise UnsupportedModelError(
                f"{where} has a {key} of {shown(value)}, which changes the forward and is not read; give "
                "a head without it."
            )


def read_layers(config: Mapping[str, Any], where: str) -> Architecture:
    """Read the architecture of a head's layers from a config with the keys of transformers.

    Args:
        config: the config.
        where: source of the config, for messages.

    Raises:
        CheckpointError: for values that no model has.
        UnsupportedModelError: for layers of another type than Llama's.
    """
    refuse_other_forwards(config, where)
    kind = config.get("model_type", "llama")
    if kind not in LLAMA_LIKE:
        raise UnsupportedModelError(
            f"{where} has layers of model type {shown(kind)}; heads of {', '.join(LLAMA_LIKE)} are read."
        )
    values = {key: config[key] for key in (*_KEYS, *_SPECIAL) if config.get(key) is not None}
    lacking = [key for key in _KEYS[:2] + _KEYS[3:4] if key not in values]
    if lacking:
        raise CheckpointError(f"{where} has no {lacking[0]}; add it, or download the head again.")
    made = _config(kind, values, where)
    check_config(made, where)
    rope = made.rope_parameters or {}
    if rope.get("rope_type") not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{where} has a rotary embedding of type {shown(rope.get('rope_type'))}; those of "
            f"{', '.join(ROPE_TYPES)} are read."
        )
    return read_architecture(made)


def _config(kind: str, values: dict[str, Any], where: str) -> Any:
    """Config with these values; transformers fills in what is not plain Llama."""
    if kind == "llama" and values.keys() >= _SIZES and not values.keys() & _SPECIAL:
        return DecoderConfig.of(where, kind, values)
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(kind, **values)
    except Exception as error:
        # Configs of transformers check themselves and may raise any exception.
        raise CheckpointError(f"{where} is wrong ({one_line(error)}).") from error


def layer_shapes(shape: Architecture, prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a layer's published tensors except its input norm, by name.

    The layer's attention reads hidden states of `width`.
    """
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    shapes: dict[str, tuple[int, ...]] = {
        f"{attention}.q_proj.weight": (queries, width),
        f"{attention}.k_proj.weight": (keys, width),
        f"{attention}.v_proj.weight": (keys, width),
        f"{attention}.o_proj.weight": (hidden, queries),
        f"{mlp}.gate_proj.weight": (inner, hidden),
        f"{mlp}.up_proj.weight": (inner, hidden),
        f"{mlp}.down_proj.weight": (hidden, inner),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
    }
    biases = [(attention, "qkv", shape.attention_bias), (attention, "o", shape.output_bias)]
    for part, names, has in (*biases, (mlp, ("gate", "up", "down"), shape.mlp_bias)):
        for name in names if has else ():
            shapes[f"{part}.{name}_proj.bias"] = shapes[f"{part}.{name}_proj.weight"][:1]
    if shape.query_key_norm:
        shapes |= {f"{attention}.{name}_norm.weight": (shape.head_dim,) for name in "qk"}
    return shapes


def layer(
    modules: Modules,
    shape: Architecture,
    tensors: Mapping[str, Tensor],
    index: int,
    input_norms: Sequence[str] = ("input_layernorm",),
    *,
    normed_residual: bool = False,
) -> Layer:
    """Build a decoder layer of a head.

    Args:
        modules: builder of its parts.
        shape: architecture of the head's layers.
        tensors: published tensors, see `layer_shapes`.
        index: index of the layer.
        input_norms: name of the norm of each input among the layer's tensors; an input whose norm
            is missing is not normed.
        normed_residual: see `LayerShape`.

    Raises:
        CheckpointError: for weights that cannot run.
    """
    prefix = f"layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    weights = {
        "qkv": _stacked(tensors, attention, "qkv", "weight"),
        "qkv_bias": _stacked(tensors, attention, "qkv", "bias"),
        "output": tensors[f"{attention}.o_proj.weight"],
        "output_bias": tensors.get(f"{attention}.o_proj.bias"),
        "q_norm": tensors.get(f"{attention}.q_norm.weight"),
        "k_norm": tensors.get(f"{attention}.k_norm.weight"),
        "mlp_norm": tensors[f"{prefix}.post_attention_layernorm.weight"],
        "gate_up": _stacked(tensors, mlp, ("gate", "up"), "weight"),
        "gate_up_bias": _stacked(tensors, mlp, ("gate", "up"), "bias"),
        "down": tensors[f"{mlp}.down_proj.weight"],
        "down_bias": tensors.get(f"{mlp}.down_proj.bias"),
    }
    for place, name in enumerate(input_norms):
        weights[f"input_norm.{place}"] = tensors.get(f"{prefix}.{name}.weight")
    given = {name: weight for name, weight in weights.items() if weight is not None}
    inner = LayerShape(
        **vars(attention_shape(shape, index)),
        activation=shape.activation,
        inputs=len(input_norms),
        normed_residual=normed_residual,
    )
    return modules.layer(inner, given)


def attention_shape(shape: Architecture, index: int = 0) -> AttentionShape:
    """Shape of the attention of a head's layer."""
    inverse, scale = frequencies(shape)
    return AttentionShape(
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        window=shape.windows[index],
        norm_eps=shape.norm_eps,
        inverse_frequencies=tuple(inverse.tolist()),
        rotary_scale=scale,
    )


class BlockCache:
    """The caches of a head's layers, which all hold the same tokens; a `forerun.contracts.Cache`.

    Args:
        layers: one cache per layer, made by its attention.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = tuple(layers)
        self.rows, self.capacity = self.layers[0].rows, self.layers[0].capacity

    @classmethod
    def of(cls, layers: Sequence[Layer], rows: int, capacity: int) -> BlockCache:
        """An empty cache for some layers."""
        return cls([layer.new_cache(rows, capacity) for layer in layers])

    def length(self, row: int, layer: int | None = None) -> int:
        """Number of tokens of `row`, in its shortest layer if None.

        Raises:
            CacheError: for a row that does not exist.
        """
        check_row(row, self.rows)
        chosen = self.layers if layer is None else self.layers[layer : layer + 1]
        return min(int(cache.length(row)) for cache in chosen)

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` tokens of `row` and, of those after them, the ones at `path`, in order."""
        for cache in self.layers:
            cache.keep(row, length, path)

    def trim(self, row: int, length: int) -> None:
        """Forget the tokens of `row` after the first `length`."""
        for cache in self.layers:
            cache.trim(row, length)


def _stacked(
    tensors: Mapping[str, Tensor], owner: str, names: Sequence[str], part: str
) -> Tensor | None:
    """The weights or biases of projections that read the same input, stacked; None if there are none."""
    found = [tensors.get(f"{owner}.{name}_proj.{part}") for name in names]
    there = [tensor for tensor in found if tensor is not None]
    return torch.cat(there) if there else None
