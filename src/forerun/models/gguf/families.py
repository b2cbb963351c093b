"""Architectures that are read from GGUF files, by llama.cpp's names, and their configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.models.families import SWIGLU_ALPHA, SWIGLU_LIMIT

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class GgufFamily:
    """An architecture in GGUF files.

    In some of its models llama.cpp rotates neighbouring pairs of a query or a key, in all others
    halves, as the published weights do.

    Args:
        model_type: its name in transformers; empty if all have experts.
        values: values of the config that differ from Llama's, from the file's numbers by their keys
            without the architecture and the values that all have.
        pairs: True if it rotates neighbouring pairs.
        experts: name in transformers of its mixtures of experts; empty if it has none.
    """

    model_type: str
    values: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda *_: {}
    pairs: bool = False
    experts: str = ""


def head_dim(values: Mapping[str, Any]) -> int:
    """Size of an attention head: as given, or the hidden size shared out among the heads."""
    size: int = values.get("head_dim", values["hidden_size"] // values["num_attention_heads"])
    return size


def _layer_types(keys: Mapping[str, Any], layers: int, period: int) -> list[str]:
    """Kinds of layers: the last of each period sees all tokens."""
    pattern = keys.get("attention.sliding_window_pattern", period)
    if isinstance(pattern, list):
        return [_SLIDING if slides else _FULL for slides in pattern]
    return [_FULL if index % pattern == pattern - 1 else _SLIDING for index in range(layers)]


def _gemma(keys: Mapping[str, Any], values: Mapping[str, Any], largest: int) -> dict[str, Any]:
    """Fields that Gemma 2 and 3 share; the models of `largest` layers scale scores by the hidden size."""
    large = values["num_hidden_layers"] == largest
    by_hidden = values["hidden_size"] // values["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": by_hidden if large else head_dim(values),
        "sliding_window": keys.get("attention.sliding_window"),
        "attn_logit_softcapping": keys.get("attn_logit_softcapping"),
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
        "use_bidirectional_attention": None,
    }


def _gemma2(keys: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_gemma(keys, values, 46),
        "layer_types": _layer_types(keys, values["num_hidden_layers"], 2),
    }


def _gemma3(keys: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    return {
        **_gemma(keys, values, 62),
        "layer_types": _layer_types(keys, values["num_hidden_layers"], 6),
        "rope_parameters": {_FULL: values["rope_parameters"], _SLIDING: local},
    }


def _granite(keys: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_multiplier": keys["attention.scale"],
        "embedding_multiplier": keys["embedding_scale"],
        "residual_multiplier": keys["residual_scale"],
        "logits_scaling": keys["logit_scale"],
    }


def _gpt_oss(keys: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "intermediate_size": keys.get("expert_feed_forward_length", values["intermediate_size"]),
        "layer_types": _layer_types(keys, values["num_hidden_layers"], 2),
        "sliding_window": keys["attention.sliding_window"],
        "rope_parameters": {**values["rope_parameters"], "truncate": False},
        "swiglu_alpha": SWIGLU_ALPHA,
        "swiglu_limit": SWIGLU_LIMIT,
    }


def _smollm3(_: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    layers = range(1, values["num_hidden_layers"] + 1)
    return {"no_rope_layers": [int(layer % 4 != 0) for layer in layers]}


def _phi3(keys: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    rope, size = values["rope_parameters"], head_dim(values)
    if rope["rope_type"] == "longrope":
        rope = {**rope, "attention_factor": keys.get("rope.scaling.attn_factor")}
    share = (keys.get("rope.dimension_count") or size) / size
    return {
        # 0 in files of models without a window.
        "sliding_window": keys.get("attention.sliding_window") or None,
        "rope_parameters": {**rope, "partial_rotary_factor": share},
        # transformers takes 4096 without it, whatever the rotary embedding says.
        "original_max_position_embeddings": rope.get("original_max_position_embeddings"),
    }


def _qwen3moe(keys: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "moe_intermediate_size": keys["expert_feed_forward_length"],
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


# Mistral's models are stored as `llama`.
FAMILIES = {
    "gemma2": GgufFamily("gemma2", _gemma2),
    "gemma3": GgufFamily("gemma3_text", _gemma3),
    "gpt-oss": GgufFamily("", _gpt_oss, experts="gpt_oss"),
    "granite": GgufFamily("granite", _granite, pairs=True),
    "llama": GgufFamily("llama", pairs=True, experts="mixtral"),
    "phi3": GgufFamily("phi3", _phi3),
    "qwen2": GgufFamily("qwen2"),
    "qwen3": GgufFamily("qwen3"),
    "qwen3moe": GgufFamily("", _qwen3moe, experts="qwen3_moe"),
    "smollm3": GgufFamily("smollm3", _smollm3, pairs=True),
}
