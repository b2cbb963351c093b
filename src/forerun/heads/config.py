"""Reading of heads' configs: their decoder layers, numbers and flags; other forwards are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forerun.errors import CheckpointError, UnsupportedModelError, shown
from forerun.models.architecture import ACTIVATIONS, Architecture, read_architecture
from forerun.models.config import DecoderConfig, check_config, one_line
from forerun.models.families import LLAMA_LIKE, ROPE_TYPES

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
_NESTED = ("rope_parameters", "rope_scaling", "eagle_config")


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
    if made.hidden_act not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{where} has an activation {shown(made.hidden_act)}; those of {', '.join(ACTIVATIONS)} are read."
        )
    shape = read_architecture(made)
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or "sliding_attention" not in kinds:
        return shape
    if config.get("use_sliding_window") is False:
        return shape
    # transformers reads windows in some families alone, other engines in all.
    window = whole(config, "sliding_window", where)
    windows = [window if kind == "sliding_attention" else None for kind in kinds]
    return replace(shape, windows=tuple(windows))


def whole(
    values: Mapping[str, Any],
    key: str,
    where: str,
    least: int = 1,
    most: int = 2**30,
    default: int | None = None,
) -> int:
    """The integer under a key of a config.

    Args:
        values: the config.
        key: the key.
        where: source of the config, for messages.
        least, most: bounds of the integer.
        default: value for a missing key or null.

    Raises:
        CheckpointError: for another value.
    """
    value = values.get(key)
    value = default if value is None else value
    if type(value) is not int or not least <= value <= most:
        raise CheckpointError(
            f"{where}: {key} is {shown(value)}; it must be a whole number from {least} to {most}."
        )
    return value


def flag(values: Mapping[str, Any], key: str, where: str, default: bool = False) -> bool:
    """The boolean under a key of a config; `default` for a missing key or null.

    Raises:
        CheckpointError: for another value.
    """
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} is {shown(value)}; it must be true or false.")
    return default if value is None else value


def layer_ids(
    values: Mapping[str, Any], key: str, where: str, added: int
) -> tuple[int, ...] | None:
    """The target's hidden layers under a key of a config; None for a missing key or null.

    Args:
        values: the config.
        key: the key.
        where: source of the config, for messages.
        added: 1 if the key numbers layers whose outputs are read, 0 if it numbers hidden states as
            `ForwardOutput.hidden` does.

    Raises:
        CheckpointError: for anything but a list of layers.
    """
    ids = values.get(key)
    if ids is None:
        return None
    fits = isinstance(ids, (list, tuple)) and 0 < len(ids) <= 64
    if not fits or not all(type(layer) is int and layer + added >= 0 for layer in ids):
        raise CheckpointError(f"{where}: {key} is {shown(ids)}; it must list layers of the target.")
    return tuple(layer + added for layer in ids)


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
