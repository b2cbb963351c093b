"""Random models written as GGUF files by the package gguf, in any type of tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import IQ4_NL
from numpy.typing import NDArray

from forerun.models.gguf.blocks import Groups, SuperBlocks
from tests.helpers.tiny_models import random_model

VOCAB = 300
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 128,
}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
OTHERS: dict[str, dict[str, Any]] = {
    "gemma2": {
        "sliding_window": 3,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 64,
    },
    "gemma3": {"sliding_window": 3, "num_hidden_layers": 7, "query_pre_attn_scalar": 64},
    "gpt-oss": {
        "intermediate_size": 256,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 3,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "truncate": False,
        },
    },
    "granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
    },
    "qwen3moe": {
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 256,
        "norm_topk_prob": True,
    },
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "phi3": {
        "sliding_window": 3,
        "pad_token_id": 1,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75},
    },
    "phi3-long": {
        "original_max_position_embeddings": 48,
        "pad_token_id": 1,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0 + 0.1 * index for index in range(32)],
            "long_factor": [1.5 + 0.5 * index for index in range(32)],
            "original_max_position_embeddings": 48,
        },
    },
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "pad_token_id": 1},
}
"""Families with numbers of their own, by llama.cpp's names, and values of their configs."""
_KEYS = {
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
_ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "phi3-long": "phi3"}
EXACT = (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.IQ4_NL)
# Where a block has its fp16 factors.
FACTORS = {
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
    Kind.IQ4_NL: (0,),
    Kind.IQ4_XS: (0,),
}
BLOCKS = (Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS)
KINDS = (*EXACT, *BLOCKS, Kind.Q2_K, Kind.F16, Kind.BF16, Kind.F32)


def stored(values: NDArray[np.float32], kind: Kind, seed: int = 0) -> NDArray[Any]:
    """Values in a type; blocks that the package cannot write are random ones of about their size."""
    if kind not in FACTORS:
        return np.asarray(gguf.quantize(values, kind))
    per_block, size = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (values.size // per_block, size), dtype=np.uint8)
    factor = np.float16(np.abs(values).std() / 300)
    for place in FACTORS[kind]:
        blocks[:, place : place + 2] = np.frombuffer(factor.tobytes(), np.uint8)
    return blocks.reshape(len(values), -1)


def values_of(blocks: Groups | SuperBlocks) -> NDArray[np.float32]:
    """The weights that the kernels make of blocks, [rows, cols]."""
    if isinstance(blocks, Groups):
        return blocks.values()
    rows, groups = blocks.scales.shape
    listed = blocks.precision.startswith("iq4")
    codes = np.array(IQ4_NL.kvalues)[blocks.codes] if listed else blocks.codes
    codes = codes.reshape(rows, groups, -1).astype(np.float32)
    if blocks.offsets is None:
        halves = blocks.scales.view(np.float16).astype(np.float32)
        return (halves[..., None] * (codes - 16 * (not listed))).reshape(blocks.codes.shape)
    factors = blocks.offsets.astype(np.float32).reshape(rows, -1, 1, 2)
    steps = blocks.scales.view(np.uint8).reshape(rows, factors.shape[1], -1, 2)
    symmetric = blocks.precision == "q6_k"
    first = steps[..., 0].view(np.int8) if symmetric or listed else steps[..., 0]
    scales = (first * factors[..., 0]).reshape(rows, groups, 1)
    offsets = (steps[..., 1] * factors[..., 1]).reshape(rows, groups, 1)
    return (scales * (codes - 32 * symmetric) + offsets).reshape(blocks.codes.shape)


# Contents of the latest files, and their configs, by what they were made of.
_WRITTEN: dict[str, tuple[bytes, Any]] = {}
_MOST_WRITTEN = 16


def write_model(
    path: Path,
    family: str = "llama",
    kind: Kind | Callable[[str], Kind] = Kind.Q8_0,
    **options: Any,
) -> Any:
    """Write a random model, with the options of `_write`; its config, of transformers."""
    if callable(kind) or {"metadata", "more"} & {*options}:
        return _write(path, family, kind, **options)
    key = repr((family, kind, sorted(options.items())))
    if key not in _WRITTEN:
        config = _write(path, family, kind, **options)
        if len(_WRITTEN) == _MOST_WRITTEN:
            del _WRITTEN[next(iter(_WRITTEN))]
        _WRITTEN[key] = path.read_bytes(), config
    content, config = _WRITTEN[key]
    path.write_bytes(content)
    return deepcopy(config)


def _write(
    path: Path,
    family: str,
    kind: Kind | Callable[[str], Kind],
    *,
    tied: bool = False,
    metadata: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    more: Mapping[str, NDArray[np.float32]] | None = None,
    alignment: int | None = None,
    **sizes: Any,
) -> Any:
    """Write a random model of a family; its config, of transformers.

    Args:
        kind: of the matrices, or a function of their names.
        metadata: that replaces or adds to the usual.
        without: keys and tensors to leave out.
        more: tensors to add.
        alignment: of the tensors, in bytes.
        sizes: that replace the usual, by transformers' names.
    """
    from transformers import AutoConfig

    architecture = _ARCHITECTURES.get(family, family)
    more_values = OTHERS.get(family, {})
    own = {**SIZES, **more_values, **sizes, "tie_word_embeddings": tied}
    kinds = {
        "gemma3": "gemma3_text",
        "gpt-oss": "gpt_oss",
        "qwen3moe": "qwen3_moe",
        "phi3-long": "phi3",
    }
    config = AutoConfig.for_model(kinds.get(family, family), **own)
    if family == "mistral":
        config = AutoConfig.for_model("llama", **own)
    model = random_model(AutoConfig.for_model(kinds.get(family, family), **own))
    keys = {
        f"{architecture}.{key}": own[name] for name, key in _KEYS.items() if name in more_values
    }
    writer = gguf.GGUFWriter(path, architecture)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    _describe(writer, config, architecture, {**keys, **(metadata or {})}, without)
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for index, (key, weight) in enumerate(_single(model.state_dict(), architecture)):
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if name in without or (tied and key == "lm_head.weight"):
            continue
        values = _arranged(key, weight, config, architecture).numpy()
        vector = values.ndim == 1 or name.endswith(".bias")
        own = Kind.F32 if vector else kind(name) if callable(kind) else kind
        writer.add_tensor(name, stored(values, own, index), raw_dtype=own)
    factors = {
        f"rope_factors_{length}.weight": np.array(_rope(config)[f"{length}_factor"], np.float32)
        for length in ("long", "short")
        if f"{length}_factor" in _rope(config)
    }
    for name, values in {**factors, **(more or {})}.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


def _single(
    tensors: Mapping[str, torch.Tensor], architecture: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Matrices under the names that the package knows: gate and up of experts apart."""
    for key, weight in tensors.items():
        if architecture == "gpt-oss" and ".experts." in key:
            yield from experts_apart(key, weight)
        elif key.endswith("experts.gate_up_proj"):
            for name, half in zip(("gate", "up"), weight.chunk(2, dim=1), strict=True):
                yield f"{key.removesuffix('gate_up_proj')}{name}_proj.weight", half
        else:
            yield key if key.endswith((".weight", ".bias")) else f"{key}.weight", weight


def experts_apart(key: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Stacks of gpt-oss as llama.cpp has them: [experts, outputs, inputs]; rows of gate and up take turns."""
    whole, ending = (weight, "bias") if key.endswith("_bias") else (weight.mT, "weight")
    prefix, name = key.removesuffix("_bias").rsplit(".", 1)
    halves = {"gate_proj": whole[:, ::2], "up_proj": whole[:, 1::2]}
    for part, rows in (halves if name == "gate_up_proj" else {name: whole}).items():
        yield f"{prefix}.{part}.{ending}", rows.contiguous()


def read_by_transformers(path: Path, config: Any) -> Any:
    """The model in a file as transformers reads it, in float32."""
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = AutoModelForCausalLM.from_config(config).eval()
    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(read["tensors"], strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


def _arranged(key: str, weight: torch.Tensor, config: Any, architecture: str) -> torch.Tensor:
    """Rows of queries and keys as llama.cpp wants them: pairs side by side."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for projection, count in heads.items():
        if architecture in ("llama", "granite", "smollm3") and f".{projection}." in key:
            halves = weight.reshape(count, 2, -1, *weight.shape[1:])
            return halves.transpose(1, 2).reshape(weight.shape)
    # Norms multiply with 1 + w in the models as they are published.
    return weight + 1 if architecture.startswith("gemma") and weight.ndim == 1 else weight


def _describe(
    writer: Any, config: Any, arch: str, metadata: Mapping[str, Any], without: tuple[str, ...]
) -> None:
    values: dict[str, Any] = {
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        f"{arch}.rope.freq_base": float(_rope(config)["rope_theta"]),
        f"{arch}.vocab_size": config.vocab_size,
        **_scaling(config, arch),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        **_vocabulary(config.vocab_size),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **metadata,
    }
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        np.int32: lambda key, value: writer.add_int32(key, int(value)),
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in values.items():
        if key not in without:
            adders.get(type(value), writer.add_array)(key, value)


def _rope(config: Any) -> Any:
    return config.rope_parameters.get("full_attention", config.rope_parameters)


def _scaling(config: Any, arch: str) -> dict[str, Any]:
    names = {
        "factor": "factor",
        "original_max_position_embeddings": "original_context_length",
    }
    rope = _rope(config) if arch in ("gpt-oss", "phi3") else {}
    found = {
        f"{arch}.rope.scaling.{key}": rope[name] for name, key in names.items() if name in rope
    }
    if rope.get("rope_type") == "yarn":
        found[f"{arch}.rope.scaling.type"] = "yarn"
    if (share := rope.get("partial_rotary_factor", 1)) == 1:
        return found
    return {**found, f"{arch}.rope.dimension_count": int(share * config.head_dim)}


def _vocabulary(size: int) -> dict[str, Any]:
    """Two special tokens, the bytes, and pairs of letters."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    words = [a + b for a in letters[64:70] for b in letters[64:80]]
    merges = [f"{word[0]} {word[1]}" for word in words]
    tokens = ["<s>", "</s>", *letters, *words][:size]
    fillers = [f"<unused{index}>" for index in range(size - len(tokens))]
    return {
        "tokenizer.ggml.tokens": [*tokens, *fillers],
        "tokenizer.ggml.merges": merges[: max(len(tokens) - 258, 1)],
        "tokenizer.ggml.token_type": [3, 3, *[1] * (size - 2)],
    }
