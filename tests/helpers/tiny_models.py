"""Tiny random models of every family, made by transformers itself, and how to run them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from forerun.core import Tree

VOCAB = 61
LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_SCALED = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_SCALED}
_SLIDING = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
_S, _F = "sliding_attention", "full_attention"
_PARTIAL = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.7}
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-rope3": ("llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "mistral": ("mistral", {"sliding_window": 3}),
    "qwen2": ("qwen2", {}),
    "qwen2-sliding": ("qwen2", _SLIDING),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-yarn": ("qwen3", {"head_dim": 16, "rope_parameters": {"rope_type": "yarn", **_SCALED}}),
    "gpt2": ("gpt2", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gemma2": ("gemma2", {"head_dim": 8, "sliding_window": 3, "attn_logit_softcapping": 2.0}),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 8,
            "sliding_window": 3,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 5,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "cohere2": ("cohere2", {"sliding_window": 3, "layer_types": [_S, _F, _S], "logit_scale": 0.5}),
    "glm4": ("glm4", {"head_dim": 12, "pad_token_id": 1}),
    "gpt_oss": (
        "gpt_oss",
        {
            "head_dim": 8,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 3,
            "rope_parameters": {"rope_type": "yarn", "truncate": False, **_SCALED},
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
            "logits_scaling": 4.0,
        },
    ),
    "ministral": ("ministral", {"sliding_window": 3, "layer_types": [_S, _F, _S], "head_dim": 8}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "sliding_window": 3}),
    "olmo2": ("olmo2", {"pad_token_id": 1}),
    "olmo3": ("olmo3", {"sliding_window": 3, "layer_types": [_S, _F, _S], "pad_token_id": 1}),
    "phi3": ("phi3", {"sliding_window": 5, "pad_token_id": 1}),
    "phi3-long": (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0, 1.5],
                "long_factor": [2.0, 4.0],
                "partial_rotary_factor": 0.75,
                "original_max_position_embeddings": 48,
            },
            "pad_token_id": 1,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {"head_dim": 8, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 16},
    ),
    "qwen3_moe-normed": (
        "qwen3_moe",
        {
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "norm_topk_prob": True,
        },
    ),
    "smollm3": (
        "smollm3",
        {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": True, "pad_token_id": 1},
    ),
    "stablelm": ("stablelm", {"use_qkv_bias": True, **_PARTIAL}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True, **_PARTIAL}),
    "starcoder2": ("starcoder2", {"sliding_window": 3}),
    "opt": ("opt", {}),
    # Local layers whose window the model cuts out of tables of its own, by slot.
    "gpt_neo": ("gpt_neo", {"attention_types": [[["global", "local", "local"], 1]]}),
    # The config has a window that the decoder does not use.
    "moshi": ("moshi", {"sliding_window": 3, "ffn_dim": 40, "num_codebooks": 2}),
}
_ADAPTED = ("gpt_neox", "opt", "gpt_neo", "moshi")
NATIVE = [name for name in FAMILIES if name not in _ADAPTED]


def tiny_config(name: str) -> Any:
    from transformers import AutoConfig

    kind, extra = FAMILIES[name]
    values = dict(LLAMA_LIKE)
    if kind == "gpt2":
        values = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 24, "n_layer": 3, "n_head": 4}
    if kind == "gpt_neo":
        values = {"vocab_size": VOCAB, "max_position_embeddings": 64, "hidden_size": 24}
        values |= {"num_layers": 3, "num_heads": 4, "window_size": 3}
    if kind in ("gpt_neox", "opt"):
        del values["num_key_value_heads"]
    if kind == "opt":
        values |= {"ffn_dim": 40, "word_embed_proj_dim": 24, "pad_token_id": 1}
    return AutoConfig.for_model(kind, **values, **extra, eos_token_id=3, bos_token_id=2)


def tiny_model(name: str) -> Any:
    return random_model(tiny_config(name))


def random_model(config: Any) -> Any:
    """A random model whose weights, norms and biases too, are far from their initial values."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for key, parameter in model.named_parameters():
        gain = "norm" in key or ".ln_" in key
        nn.init.normal_(parameter, mean=float(gain), std=0.3)
    model.tie_weights()
    return model


def tokens(rows: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (rows, width), generator=generator)


# A tree after a prompt: the last committed token, then drafted nodes.
# Its longest path leaves a sliding window of 3, and its slots are not its positions.
TREE = Tree((-1, 0, 0, 1, 1, 2, 3, 5, 7, 8))
PATHS = [TREE.path_to(node) for node in range(len(TREE))]
LEAF_PATHS = [path for path in PATHS if path[-1] not in TREE.parents]
"""All nodes lie on them, behind the nodes before them."""


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
