"""Heads in published layouts, written from their description alone: configs and tensors by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forerun.export.head import PublishedHead, Target

VOCAB, HIDDEN, LAYERS, DRAFT_VOCAB, RANK = 61, 24, 8, 40, 4
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
"""What both layouts say about the decoder layers."""

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

DSPARK_CONFIG: dict[str, Any] = {
    **LAYER_CONFIG,
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "architectures": ["Qwen3DSparkModel"],
    "layer_types": ["full_attention"] * 2,
    "tie_word_embeddings": False,
    "num_target_layers": LAYERS,
    "target_layer_ids": [1, 3, 5],
    "block_size": 4,
    "mask_token_id": 60,
    "sample_from_anchor": True,
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
"""DeepSpec's layout of DSpark."""


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
DSPARK_SHAPES: dict[str, tuple[int, ...]] = {
    "fc.weight": (HIDDEN, FUSED),
    "hidden_norm.weight": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    **layer_shapes(0, HIDDEN),
    **layer_shapes(1, HIDDEN),
    **{
        f"layers.{index}.self_attn.{name}.weight": (HEAD_DIM,)
        for index in range(2)
        for name in ("q_norm", "k_norm")
    },
    "markov_head.markov_w1.weight": (VOCAB, RANK),
    "markov_head.markov_w2.weight": (VOCAB, RANK),
    "confidence_head.proj.weight": (1, HIDDEN + RANK),
    "confidence_head.proj.bias": (1,),
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


def dspark_head(**changes: Any) -> PublishedHead:
    """A portable DSpark head, with other values in its config."""
    return head_of({**DSPARK_CONFIG, **changes}, random_tensors(DSPARK_SHAPES))


def reduced_dspark_head() -> PublishedHead:
    """A DSpark head over a reduced draft vocabulary, as forerun trains it."""
    shapes = {**DSPARK_SHAPES, "markov_head.markov_w2.weight": (DRAFT_VOCAB, RANK)}
    tensors = {**random_tensors(shapes), **draft_vocabulary()}
    return head_of({**DSPARK_CONFIG, "draft_vocab_size": DRAFT_VOCAB}, tensors)


def wrapped_eagle3_head(**changes: Any) -> PublishedHead:
    """An EAGLE-3 head in the format of speculators."""
    flags = {
        key: value
        for key, value in EAGLE3_CONFIG.items()
        if key not in LAYER_CONFIG and key != "eagle_config"
    }
    wrapper = _wrapper("eagle3", LAYER_CONFIG)
    config = {**flags, **wrapper, "architectures": ["Eagle3Speculator"]}
    return head_of({**config, **changes}, eagle3_head().tensors)


def wrapped_dspark_head(**changes: Any) -> PublishedHead:
    """A DSpark head in the format of speculators."""
    kept = (*LAYER_CONFIG, "layer_types", "target_layer_ids", "num_target_layers")
    own = {key: value for key, value in DSPARK_CONFIG.items() if key not in kept}
    layers = {**LAYER_CONFIG, "model_type": "qwen3", "num_hidden_layers": 2}
    config = {
        **own,
        **_wrapper("dspark", {**layers, "layer_types": ["full_attention"] * 2}),
        "architectures": ["DSparkSpeculator"],
        "draft_vocab_size": VOCAB,
        "aux_hidden_state_layer_ids": [2, 4, 6],
    }
    return head_of({**config, **changes}, dspark_head().tensors)


def _wrapper(kind: str, layers: dict[str, Any]) -> dict[str, Any]:
    return {
        "speculators_model_type": kind,
        "transformer_layer_config": layers,
        "speculators_config": {
            "algorithm": kind,
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
