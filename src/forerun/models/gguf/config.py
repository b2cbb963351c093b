"""From the metadata of a GGUF file to a config of transformers, by transformers' own table of keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.errors import CheckpointError, UnsupportedModelError, shown
from forerun.models.config import check_config, one_line
from forerun.models.gguf.header import GgufHeader

# Architectures by llama.cpp's names; Mistral's models are stored as `llama`.
FAMILIES = ("llama", "qwen2", "qwen3")

_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ROPE_KINDS = {"none": "default", "linear": "linear", "yarn": "yarn"}


def read_gguf_config(header: GgufHeader) -> Any:
    """The config of the model in a GGUF file, with values that a model can have.

    Raises:
        CheckpointError: for metadata that is missing or wrong.
        UnsupportedModelError: for an architecture or a rotary embedding that forerun does not read.
    """
    from transformers import AutoConfig
    from transformers.integrations import GGUF_CONFIG_MAPPING

    path, metadata = header.path, header.metadata
    family = _family(path, metadata)
    keys = {**GGUF_CONFIG_MAPPING[family], "attention.key_length": "head_dim"}
    values = {
        name: metadata[f"{family}.{key}"]
        for key, name in keys.items()
        if name is not None and f"{family}.{key}" in metadata
    }
    theta = values.pop("rope_theta", 10000.0)
    values |= {
        "vocab_size": _vocabulary(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(path, family, metadata) | {"rope_theta": theta},
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if family == "llama":
        values["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    try:
        config = AutoConfig.for_model(family, **values)
    except Exception as error:
        # Configs of transformers check themselves and raise whatever their checks raise.
        raise CheckpointError(
            f"{path} describes no model ({one_line(error)}); download it again."
        ) from error
    check_config(config, path)
    return config


def read_gguf_end_tokens(header: GgufHeader, config: Any) -> frozenset[int]:
    """The tokens that end a text or a turn.

    Raises:
        CheckpointError: when one is not a token.
    """
    ids = [header.metadata.get(f"tokenizer.ggml.{name}") for name in _END_TOKENS]
    given = [token for token in ids if token is not None]
    for token in given:
        if type(token) is not int or not 0 <= token < config.vocab_size:
            raise CheckpointError(
                f"{header.path}: {shown(token)} ends a text; it must be a token id from 0 to "
                f"{config.vocab_size - 1}."
            )
    return frozenset(given)


def _family(path: Path, metadata: Mapping[str, Any]) -> str:
    """The architecture, by llama.cpp's name.

    Raises:
        UnsupportedModelError: for one that is not read.
    """
    family = metadata.get("general.architecture")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedModelError(
            f"{path} holds a model of architecture {shown(family)}; GGUF is read of "
            f"{', '.join(FAMILIES)}. Take the original checkpoint in safetensors."
        )
    if metadata.get(f"{family}.expert_count"):
        raise UnsupportedModelError(
            f"{path} holds a mixture of experts, which is not read from GGUF; take the original "
            "checkpoint in safetensors."
        )
    return family


def _vocabulary(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{header.path} has no token_embd.weight; it holds no complete model. Download it again."
        )
    return embedding.shape[0]


def _rope(path: Path, family: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and numbers of the rotary embedding, theta apart."""
    prefix = f"{family}.rope.scaling"
    kind = metadata.get(f"{prefix}.type", "none")
    if kind not in _ROPE_KINDS:
        raise UnsupportedModelError(
            f"{path} scales its rotary embedding by {shown(kind)}; "
            f"{', '.join(_ROPE_KINDS)} are read. Take the original checkpoint in safetensors."
        )
    rope: dict[str, Any] = {"rope_type": _ROPE_KINDS[kind]}
    if kind != "none":
        rope["factor"] = metadata.get(f"{prefix}.factor", 1.0)
    if kind == "yarn":
        rope["original_max_position_embeddings"] = metadata.get(f"{prefix}.original_context_length")
    return rope
