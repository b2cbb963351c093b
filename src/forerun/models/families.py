"""Families that forerun's own decoder runs: how each one's config is read, and how its tensors are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.errors import CheckpointError, shown

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of the text."""

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
"""Families with Llama's tensors and layers, of which heads and trained draft models are made."""

CLAMPED_SWIGLU, SWIGLU_ALPHA, SWIGLU_LIMIT = "clamped_swiglu", 1.702, 7.0
"""Gate g sigmoid(alpha g) (u + 1), with g at most the limit and u within it on both sides."""

_LLAMA = {
    "embedding": "model.embed_tokens",
    "layers": "model.layers",
    "norm": "model.norm",
    "input_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "sinks": "self_attn.sinks",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate_up": "mlp.gate_proj mlp.up_proj",
    "down": "mlp.down_proj",
}
_GPT2 = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "layers": "transformer.h",
    "norm": "transformer.ln_f",
    "input_norm": "ln_1",
    "mlp_norm": "ln_2",
    "qkv": "attn.c_attn",
    "output": "attn.c_proj",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
_EXPERTS = {
    "gate_up": "mlp.experts.{0}.gate_proj mlp.experts.{0}.up_proj",
    "down": "mlp.experts.{0}.down_proj",
}
_TWO_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_FOUR_NORMS = {**_TWO_NORMS, "mlp_norm": "pre_feedforward_layernorm"}


@dataclass(frozen=True)
class Family:
    """A family of models: how to read an `Architecture` from its configs, and its tensors' names.

    Args:
        read: fields of the architecture, from a config of transformers, that differ from those of the
            plainest decoder.
        names: published names of the decoder's tensors that differ from Llama's. Several names,
            separated by a space, are stacked, and so are those of all experts, whose number takes
            the place of `{0}`.
        only: keys of the config with the values that the decoder runs; other values go to the adapter.
        rope_types: types of rotary embedding that it runs.
        partial: whether its rotary embedding may turn only a part of each head.
        transposed: whether matrices are published as [inputs, outputs].
    """

    read: Callable[[Any], dict[str, Any]]
    names: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rope_types: tuple[str, ...] = ROPE_TYPES
    partial: bool = False
    transposed: bool = False

    @property
    def published(self) -> Mapping[str, str]:
        """Published names of the decoder's tensors."""
        return self.names if self.transposed else {**_LLAMA, **self.names}


def sliding_window(config: Any) -> int | None:
    """Number of tokens that the sliding layers of a config of transformers see; None if it has none.

    Raises:
        CheckpointError: for a window outside [1, 2**30]: libraries disagree on the meaning of 0.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds and "sliding_attention" not in kinds:
        return None
    return _checked(getattr(config, "sliding_window", None))


def _checked(window: Any) -> int | None:
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 2**30:
        raise CheckpointError(
            f"sliding_window is {shown(window)}; it must be an integer from 1 to 2**30, or null."
        )
    return window


def _windows(config: Any) -> tuple[int | None, ...]:
    """Windows by layer, for families whose config names the layers that have one."""
    window = sliding_window(config)
    return tuple(window if kind == "sliding_attention" else None for kind in config.layer_types)


def _one_window(config: Any) -> tuple[int | None, ...]:
    """One window for all layers, for families that go by no `layer_types`."""
    layers: int = config.num_hidden_layers
    return (_checked(config.sliding_window),) * layers


def _biases(config: Any) -> dict[str, Any]:
    return dict.fromkeys(("attention_bias", "output_bias"), bool(config.attention_bias))


def _llama(config: Any) -> dict[str, Any]:
    return {**_biases(config), "mlp_bias": bool(config.mlp_bias)}


def _gpt2(config: Any) -> dict[str, Any]:
    return {
        "intermediate_size": config.n_inner or 4 * config.n_embd,
        "norm_eps": config.layer_norm_epsilon,
        "activation": config.activation_function,
        "ropes": (None,) * config.num_hidden_layers,
        **dict.fromkeys(("layer_norm", "norm_bias", "learned_positions"), True),
        **dict.fromkeys(("attention_bias", "output_bias", "mlp_bias"), True),
    }


def _gemma(config: Any) -> dict[str, Any]:
    return {
        **_biases(config),
        "activation": config.hidden_activation,
        "windows": _windows(config),
        "norm_after": True,
        "norm_offset": 1.0,
        "attention_scale": config.query_pre_attn_scalar**-0.5,
        "embedding_scale": config.hidden_size**0.5,
        "logit_cap": config.final_logit_softcapping or 0.0,
    }


_GEMMA: Mapping[str, Any] = {"use_bidirectional_attention": (None, False)}


def _olmo(config: Any) -> dict[str, Any]:
    return {
        **_biases(config),
        "norm_before": False,
        "norm_after": True,
        "query_key_norm": "whole",
    }


def _granite(config: Any) -> dict[str, Any]:
    return {
        **_llama(config),
        "attention_scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": 1 / config.logits_scaling,
    }


def _cohere2(config: Any) -> dict[str, Any]:
    windows = _windows(config)
    return {
        **_biases(config),
        "norm_eps": config.layer_norm_eps,
        "layer_norm": True,
        "parallel": True,
        "logit_scale": config.logit_scale,
        "windows": windows,
        "ropes": tuple(None if window is None else "" for window in windows),
        "rope_pairs": True,
    }


def _starcoder2(config: Any) -> dict[str, Any]:
    biases = ("attention_bias", "output_bias", "mlp_bias")
    return {
        "norm_eps": config.norm_epsilon,
        "windows": _one_window(config),
        **dict.fromkeys(("layer_norm", "norm_bias"), True),
        **dict.fromkeys(biases, bool(config.use_bias)),
    }


def _stablelm(config: Any) -> dict[str, Any]:
    return {
        "norm_eps": config.layer_norm_eps,
        "attention_bias": bool(config.use_qkv_bias),
        "parallel": bool(config.use_parallel_residual),
        **dict.fromkeys(("layer_norm", "norm_bias"), True),
    }


# Of all layers together. Each is a matrix of its own, and files that claim more would take minutes.
_MOST_EXPERTS = 2**16


def _experts(config: Any) -> dict[str, Any]:
    count, layers = config.num_experts, config.num_hidden_layers
    most = _MOST_EXPERTS // layers
    if type(count) is not int or not 1 <= count <= most:
        raise CheckpointError(
            f"num_experts is {shown(count)}; with {layers} layers it must lie in [1, {most}]."
        )
    return {
        "num_experts": count,
        "experts_per_token": config.num_experts_per_tok,
        "norm_topk_prob": config.norm_topk_prob if config.model_type == "qwen3_moe" else True,
        "windows": _one_window(config),
    }


def _gpt_oss(config: Any) -> dict[str, Any]:
    return {
        **_biases(config),
        **_experts(config),
        "activation": CLAMPED_SWIGLU,
        "windows": _windows(config),
        **dict.fromkeys(("sinks", "mlp_bias"), True),
    }


def _phi3(config: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {"windows": _one_window(config)}
    # Longer texts take other frequencies: `forerun.models.architecture.for_context`.
    if config.rope_parameters.get("rope_type") == "longrope":
        shape["max_context"] = config.rope_parameters["original_max_position_embeddings"]
    return shape


FAMILIES: dict[str, Family] = {
    "cohere2": Family(_cohere2),
    "gemma2": Family(
        lambda config: {**_gemma(config), "score_cap": config.attn_logit_softcapping or 0.0},
        names=_FOUR_NORMS,
        only=_GEMMA,
    ),
    "gemma3_text": Family(
        lambda config: {
            **_gemma(config),
            "query_key_norm": "head",
            "ropes": tuple(config.layer_types),
        },
        names=_FOUR_NORMS,
        only={**_GEMMA, "attn_logit_softcapping": (None,)},
    ),
    "glm4": Family(
        lambda config: {
            "attention_bias": bool(config.attention_bias),
            "norm_after": True,
            "rope_pairs": True,
        },
        names={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_mlp_norm": "post_mlp_layernorm",
            "gate_up": "mlp.gate_up_proj",
        },
        partial=True,
    ),
    "gpt2": Family(
        _gpt2,
        names=_GPT2,
        only={
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
            "add_cross_attention": (False,),
            "reorder_and_upcast_attn": (False,),
        },
        transposed=True,
    ),
    "gpt_oss": Family(
        _gpt_oss,
        names={"router": "mlp.router", **_EXPERTS},
        only={"swiglu_alpha": (SWIGLU_ALPHA,), "swiglu_limit": (SWIGLU_LIMIT,)},
    ),
    "granite": Family(_granite),
    "llama": Family(_llama),
    "ministral": Family(lambda config: {"windows": _windows(config)}),
    "mistral": Family(lambda config: {"windows": _one_window(config)}),
    "mixtral": Family(
        _experts,
        names={
            "router": "block_sparse_moe.gate",
            "gate_up": "block_sparse_moe.experts.{0}.w1 block_sparse_moe.experts.{0}.w3",
            "down": "block_sparse_moe.experts.{0}.w2",
        },
    ),
    "olmo2": Family(_olmo, names=_TWO_NORMS),
    "olmo3": Family(
        lambda config: {
            **_olmo(config),
            "windows": _windows(config),
            "ropes": tuple(config.layer_types),
        },
        names=_TWO_NORMS,
    ),
    "phi3": Family(
        _phi3,
        names={"qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"},
        rope_types=("default", "longrope"),
        partial=True,
    ),
    "qwen2": Family(lambda config: {"attention_bias": True, "windows": _windows(config)}),
    "qwen3": Family(
        lambda config: {**_biases(config), "query_key_norm": "head", "windows": _windows(config)}
    ),
    "qwen3_moe": Family(
        lambda config: {
            **_biases(config),
            **_experts(config),
            "intermediate_size": config.moe_intermediate_size,
            "query_key_norm": "head",
        },
        names={"router": "mlp.gate", **_EXPERTS},
        only={"decoder_sparse_step": (1,), "mlp_only_layers": (None, [])},
    ),
    "smollm3": Family(
        lambda config: {
            **_llama(config),
            "windows": _windows(config),
            "ropes": tuple("" if used else None for used in config.no_rope_layers),
        }
    ),
    "stablelm": Family(_stablelm, only={"qk_layernorm": (False,)}, partial=True),
    "starcoder2": Family(_starcoder2, names={"up": "mlp.c_fc", "down": "mlp.c_proj"}),
}
"""Families by the config's `model_type`, with their differences from the plainest decoder."""
