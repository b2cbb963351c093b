"""A model stored as a GGUF file."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType

from forerun.models.architecture import Architecture, read_architecture
from forerun.models.generation import sampling_defaults
from forerun.models.gguf.config import read_gguf_config, read_gguf_end_tokens
from forerun.models.gguf.header import GgufHeader
from forerun.models.gguf.source import GgufSource, frequency_factors
from forerun.models.gguf.tokenizer import read_gguf_tokenizer, tokenizer_notes
from forerun.models.layouts import layout_of

_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


class StoredGguf:
    """A GGUF file; implements `forerun.models.stored.StoredModel`.

    Args:
        path: path of the file, or of any part of a split one.

    Raises:
        CheckpointError, UnsupportedModelError: for a file that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.header = GgufHeader.read(path)

    def config(self) -> Any:
        return read_gguf_config(self.header)

    def end_tokens(self, config: Any) -> frozenset[int]:
        return read_gguf_end_tokens(self.header, config)

    def sampling_defaults(self) -> dict[str, Any]:
        values = {
            name: self.header.metadata.get(f"general.sampling.{key}")
            for name, key in _SAMPLING.items()
        }
        # Rounded, because they are stored in 32 bits: 0.8, not 0.800000012.
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in values.items()}
        return sampling_defaults(short, str(self.header.path))

    @property
    def has_tokenizer(self) -> bool:
        return any(key.startswith("tokenizer.") for key in self.header.metadata)

    def tokenizer(self, config: Any) -> Any:
        return read_gguf_tokenizer(self.header)

    @property
    def notes(self) -> tuple[str, ...]:
        return tokenizer_notes(self.header)

    def architecture(self, config: Any) -> Architecture:
        shape = read_architecture(config)
        return replace(
            shape,
            output_bias="blk.0.attn_output.bias" in self.header.tensors,
            frequency_factors=frequency_factors(self.header, shape.head_dim),
        )

    def source(self, config: Any) -> GgufSource:
        shape = self.architecture(config)
        return GgufSource(self.header, layout_of(shape), shape)

    def dtype(self, config: Any) -> torch.dtype | None:
        return _FLOATS.get(next(iter(kinds))) if len(kinds := self.kinds) == 1 else None

    @cached_property
    def kinds(self) -> frozenset[GGMLQuantizationType]:
        """Types of the matrices."""
        tensors = self.header.tensors.values()
        return frozenset(tensor.kind for tensor in tensors if len(tensor.shape) > 1)

    @property
    def quantized(self) -> bool:
        # Matrices in fp16 run in bf16.
        return not self.kinds <= {GGMLQuantizationType.F32, GGMLQuantizationType.BF16}
