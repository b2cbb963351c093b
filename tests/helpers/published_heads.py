"""Heads in published layouts, written from their description alone: configs and tensors by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forerun.export.head import PublishedHead, Target

VOCAB, HIDDEN, LAYERS, DRAFT_VOCAB = 61, 24, 8, 40
HEADS, KV_HEADS, HEAD_DIM, INNER = 4, 2, 6, 40
FUSED = 3 * HIDDEN
THETA = 50.0
ROPE = {"rope_type": "default", "rope_theta": THETA}
TARGET = Target("tiny", VOCAB, HIDDEN, LAYERS, 64, rope=ROPE)
AUX = "eagle_aux_hidden_state_layer_ids"

LAYER_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "max_position_embeddings": 64,
    "rope_parameters": ROPE,
    "rope_theta": THETA,
    "rope_scaling": None,
    "vocab_size": VOCAB,
    "dtype": "float32",
}
"""Config of the decoder layers, in either format."""

EAGLE3_CONFIG: dict[str, Any] = {
    **LAYER_CONFIG,
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": DRAFT_VOCAB,
    "tie_word_embeddings": False,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    AUX: None,
    "eagle_config": {"use_aux_hidden_state": True, AUX: None},
}
"""The portable profile of EAGLE-3."""


def layer_shapes(index: int, columns: int, prefix: str = "layers.") -> dict[str, tuple[int, ...]]:
    queries, keys, at = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, f"{prefix}{index}"
    return {
        f"{at}.input_layernorm.weight": (HIDDEN,),
        f"{at}.post_attention_layernorm.weight": (HIDDEN,),
        f"{at}.self_attn.q_proj.weight": (queries, columns),
        f"{at}.self_attn.k_proj.weight": (keys, columns),
        f"{at}.self_attn.v_proj.weight": (keys, columns),
        f"{at}.self_attn.o_proj.weight": (HIDDEN, queries),
        f"{at}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{at}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{at}.mlp.down_proj.weight": (HIDDEN, INNER),
    }


EAGLE3_SHAPES: dict[str, tuple[int, ...]] = {
    "fc.weight": (HIDDEN, FUSED),
    "norm.weight": (HIDDEN,),
    "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    "layers.0.hidden_norm.weight": (HIDDEN,),
    **layer_shapes(0, 2 * HIDDEN),
}


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Tensors far from their initial values; norms around one."""
    source = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=source) * 0.3 + ("norm" in name)
        for name, shape in shapes.items()
    }


def draft_vocabulary(seed: int = 0) -> dict[str, Tensor]:
    """d2t as offsets, and t2d, of a random subset of the target's tokens."""
    source = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(VOCAB, generator=source)[:DRAFT_VOCAB].sort().values
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[chosen] = True
    return {"d2t": chosen - torch.arange(DRAFT_VOCAB), "t2d": mask}


def eagle3_head(**changes: Any) -> PublishedHead:
    """A portable EAGLE-3 head, with other values in its config."""
    tensors = {**random_tensors(EAGLE3_SHAPES), **draft_vocabulary()}
    return head_of({**EAGLE3_CONFIG, **changes}, tensors)


def wrapped_eagle3_head(**changes: Any) -> PublishedHead:
    """An EAGLE-3 head in the format of speculators."""
    flags = {
        key: value
        for key, value in EAGLE3_CONFIG.items()
        if key not in LAYER_CONFIG and key != "eagle_config"
    }
    wrapper = _wrapper(LAYER_CONFIG)
    config = {**flags, **wrapper, "architectures": ["Eagle3Speculator"]}
    return head_of({**config, **changes}, eagle3_head().tensors)


def _wrapper(layers: dict[str, Any]) -> dict[str, Any]:
    return {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layers,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "owner/tiny", "architectures": ["LlamaForCausalLM"]},
        },
    }


def head_of(config: dict[str, Any], tensors: Any, record: Any = None) -> PublishedHead:
    """A head as it would be read; keys whose value is `...` are left out."""
    kept = {key: value for key, value in config.items() if value is not ...}
    return PublishedHead("head", kept, dict(tensors), record or {})


def with_tensors(head: PublishedHead, **tensors: Tensor | None) -> PublishedHead:
    """The same head with other tensors; None takes one away. `__` in a name stands for a dot."""
    stored = dict(head.tensors)
    for name, tensor in tensors.items():
        stored.pop(name.replace("__", "."), None)
        if tensor is not None:
            stored[name.replace("__", ".")] = tensor
    return head_of(dict(head.config), stored, head.record)
