"""Models for benchmarks by name: the zoo's, and random weights in the shapes of others."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.errors import ConfigError, UnknownNameError
from forerun.models.architecture import Architecture, read_architecture
from forerun.models.checkpoint import Checkpoint
from forerun.models.cpu import CpuModel
from forerun.models.hub import Location
from forerun.models.layouts import layout_of
from forerun.models.placement import STORED
from forerun.models.stored import StoredDirectory
from forerun.models.zoo import PACKAGED, is_packaged

# 32k, and what is checked behind it.
MAX_CONTEXT = 2**15 + 64
# Not a power of two, so that rows of a matrix differ.
_BLOCK = 2**22 + 3


@dataclass(frozen=True)
class Shape:
    """The shape of a model whose weights are random.

    Args:
        family: `llama` or `qwen3`.
        hidden, layers, heads, intermediate, vocabulary: sizes.
        kv_heads: as many as `heads` where None.
        head_dim: hidden / heads where None.
        tied: whether the head is the embedding.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    kv_heads: int | None = None
    head_dim: int | None = None
    tied: bool = False

    def config(self) -> Any:
        """The config of transformers that describes it."""
        from transformers import LlamaConfig, Qwen3Config

        kind: Any = Qwen3Config if self.family == "qwen3" else LlamaConfig
        return kind(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim or self.hidden // self.heads,
            intermediate_size=self.intermediate,
            vocab_size=self.vocabulary,
            max_position_embeddings=MAX_CONTEXT,
            tie_word_embeddings=self.tied,
            architectures=["Qwen3ForCausalLM" if self.family == "qwen3" else "LlamaForCausalLM"],
            bos_token_id=None,
            eos_token_id=None,
            dtype=torch.bfloat16,
        )


SHAPES = {
    # 15 MB in int8, as large as a draft may be that is to stay in the cache.
    "draft-15m": Shape("llama", 288, 6, 6, 768, 32000, tied=True),
    # 45 MB in int4, whose output head has 8 bits; with the vocabulary of SmolLM2.
    "draft-50m": Shape("llama", 512, 8, 8, 1408, 49152, tied=True),
    "llama-110m": Shape("llama", 768, 12, 12, 2048, 32000),
    "llama-350m": Shape("llama", 1024, 24, 16, 2816, 32000),
    "qwen3-0.6b": Shape("qwen3", 1024, 28, 16, 3072, 151936, 8, 128, tied=True),
    "qwen3-4b": Shape("qwen3", 2560, 36, 32, 9728, 151936, 8, 128, tied=True),
}

MODELS = (*PACKAGED, *SHAPES)


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


class StoredShape(StoredDirectory):
    """A shape with random weights, as if it were stored."""

    def __init__(self, name: str) -> None:
        super().__init__(Path(name))
        self._shape = SHAPES[name]

    def config(self) -> Any:
        return self._shape.config()

    def architecture(self, config: Any) -> Architecture:
        return read_architecture(config)

    def source(self, config: Any) -> RandomSource:
        return RandomSource(read_architecture(config))


def open_model(name: str, revision: str | None = None) -> Checkpoint:
    """A model of MODELS, a checkpoint's directory, a GGUF file or a hub id.

    Raises:
        UnknownNameError: for a name that is none of these.
        CheckpointError: for a checkpoint that cannot be read, or where the zoo is missing.
    """
    if name in SHAPES:
        stored = StoredShape(name)
        return Checkpoint(name, Location(Path(name)), stored, stored.config())
    return Checkpoint.open(name, revision)


def build(name: str, precision: str) -> CpuModel:
    """A model of MODELS, a checkpoint's directory or a GGUF file, on the kernels.

    Raises:
        UnknownNameError: for a name that is neither.
        ConfigError: for the stored precision of a model that is not quantized.
        CheckpointError: for a directory that holds no checkpoint, or where the zoo is missing.
    """
    if name not in SHAPES and not is_packaged(name) and not Path(name).exists():
        raise UnknownNameError("model", name, MODELS)
    checkpoint = open_model(name)
    if precision == STORED and not checkpoint.stored.quantized:
        raise ConfigError(f"{name} is not quantized; give a precision other than {STORED!r}.")
    return CpuModel(checkpoint.architecture, checkpoint.source(), precision, name)
