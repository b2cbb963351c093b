"""Models for benchmarks by name: the zoo's, and random weights in the shapes of others."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from forerun.costs.shapes import SHAPES, ModelShape
from forerun.errors import ConfigError, UnknownNameError
from forerun.models.architecture import Architecture, read_architecture
from forerun.models.checkpoint import Checkpoint
from forerun.models.cpu import CpuModel
from forerun.models.hub import Location
from forerun.models.layouts import layout_of
from forerun.models.run_config import STORED
from forerun.models.zoo import PACKAGED, is_packaged

# 32k, and what is checked behind it.
MAX_CONTEXT = 2**15 + 64
# Not a power of two, so that rows of a matrix differ.
_BLOCK = 2**22 + 3

RANDOM_SHAPES = {
    # 15 MB in int8, as large as a draft may be that is to stay in the cache.
    "draft-15m": ModelShape(6, 288, 6, 6, 48, 768, 32000, tied=True),
    # 45 MB in int4, whose output head has 8 bits; with the vocabulary of SmolLM2.
    "draft-50m": ModelShape(8, 512, 8, 8, 64, 1408, 49152, tied=True),
    "llama-110m": ModelShape(12, 768, 12, 12, 64, 2048, 32000),
    "llama-350m": ModelShape(24, 1024, 16, 16, 64, 2816, 32000),
    # As sparse as Qwen3-30B-A3B: of 64 experts of a layer a token calls 4. 0.5 GB in int4.
    "experts-1b": ModelShape(12, 1024, 16, 2, 64, 384, 32000, num_experts=64, experts_per_token=4),
    **{name: SHAPES[name] for name in ("qwen3-0.6b", "qwen3-4b")},
}
"""Dimensions of models with random weights, by name."""


def config_of(shape: ModelShape) -> Any:
    """The config of transformers: Qwen3's mixture for experts, Qwen3's if the name says so, else Llama's."""
    from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig

    family, kind = "Llama", cast(Any, LlamaConfig)
    sparse: dict[str, Any] = {}
    if shape.num_experts:
        family, kind = "Qwen3Moe", Qwen3MoeConfig
        sparse = {
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.intermediate_size,
            "norm_topk_prob": True,
        }
    elif shape.name.startswith("qwen3"):
        family, kind = "Qwen3", Qwen3Config
    return kind(
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        vocab_size=shape.vocab_size,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=shape.tied,
        architectures=[f"{family}ForCausalLM"],
        bos_token_id=None,
        eos_token_id=None,
        dtype=torch.bfloat16,
        **sparse,
    )


MODELS = (*PACKAGED, *RANDOM_SHAPES)


class RandomSource:
    """Weights that a small random block repeats, so that none of them is kept."""

    name = "random weights"

    def __init__(self, architecture: Architecture) -> None:
        generator = torch.Generator().manual_seed(0)
        self._block = (0.02 * torch.randn(_BLOCK, generator=generator)).bfloat16()
        self.shapes = layout_of(architecture).published

    def read(self, key: str) -> Tensor:
        """A whole tensor: ones for a norm, else random numbers in bfloat16."""
        return self.slice(key, 0, 0, self.shapes[key][0])

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """A part of it."""
        shape = self.shapes[key]
        if len(shape) == 1:
            return torch.ones(stop - start, dtype=torch.bfloat16)
        if dim:
            return self.read(key).narrow(dim, start, stop - start)
        offset = (zlib.crc32(key.encode()) + start * shape[1]) % _BLOCK
        count = (stop - start) * shape[1]
        times = -(-(offset + count) // _BLOCK)
        numbers = self._block if times == 1 else self._block.repeat(times)
        return numbers[offset : offset + count].view(-1, shape[1])


class RandomCheckpoint(Checkpoint):
    """A shape with random weights, as if it were stored."""

    def source(self) -> RandomSource:
        return RandomSource(read_architecture(self.config))


def open_model(name: str) -> Checkpoint:
    """A model of MODELS, a checkpoint's directory, a GGUF file or a hub id.

    Raises:
        UnknownNameError: for a name that is none of these.
        CheckpointError: for a checkpoint that cannot be read, or where the zoo is missing.
    """
    if name in RANDOM_SHAPES:
        return RandomCheckpoint(name, Location(Path(name)), config_of(RANDOM_SHAPES[name]))
    return Checkpoint.open(name)


def build(name: str, precision: str) -> CpuModel:
    """A model of MODELS, a checkpoint's directory or a GGUF file, on the kernels.

    Raises:
        UnknownNameError: for a name that is neither.
        ConfigError: for the stored precision of a model that is not quantized.
        CheckpointError: for a directory that holds no checkpoint, or where the zoo is missing.
    """
    if name not in RANDOM_SHAPES and not is_packaged(name) and not Path(name).exists():
        raise UnknownNameError("model", name, MODELS)
    checkpoint = open_model(name)
    if precision == STORED and not checkpoint.quantized:
        raise ConfigError(f"{name} is not quantized; give a precision other than {STORED!r}.")
    return CpuModel(checkpoint.architecture, checkpoint.source(), precision, name)
