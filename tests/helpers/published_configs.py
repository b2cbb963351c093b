"""The config.json values of published checkpoints, with their known number of parameters."""

from __future__ import annotations

from typing import Any

_LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-05,
    "n_ctx": 1024,
    "n_positions": 1024,
    "vocab_size": 50257,
}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen/Qwen3-4B": (
        _QWEN3
        | {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "max_window_layers": 36,
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
        },
        4_022_468_096,
    ),
    "Qwen/Qwen3-0.6B": (
        _QWEN3
        | {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "max_window_layers": 28,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
        },
        596_049_920,
    ),
    "meta-llama/Llama-3.1-8B": (
        _LLAMA3
        | {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "rope_scaling": _LLAMA3_ROPE | {"factor": 8.0},
            "tie_word_embeddings": False,
        },
        8_030_261_248,
    ),
    "meta-llama/Llama-3.2-1B": (
        _LLAMA3
        | {
            "head_dim": 64,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "rope_scaling": _LLAMA3_ROPE | {"factor": 32.0},
            "tie_word_embeddings": True,
        },
        1_235_814_400,
    ),
    "mistralai/Mistral-7B-v0.1": (
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": 32000,
        },
        7_241_732_096,
    ),
    "Qwen/Qwen2.5-7B": (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_act": "silu",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "max_position_embeddings": 131072,
            "max_window_layers": 28,
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 131072,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "vocab_size": 152064,
        },
        7_615_616_512,
    ),
    "openai-community/gpt2": (
        _GPT2 | {"n_embd": 768, "n_head": 12, "n_layer": 12},
        124_439_808,
    ),
    "openai-community/gpt2-large": (
        _GPT2 | {"n_embd": 1280, "n_head": 20, "n_layer": 36},
        774_030_080,
    ),
}
