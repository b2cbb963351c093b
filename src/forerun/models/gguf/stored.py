"""A model that is stored as a GGUF file."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType

from forerun.models.architecture import Architecture, read_architecture
from forerun.models.gguf.config import read_gguf_config, read_gguf_end_tokens
from forerun.models.gguf.header import GgufHeader
from forerun.models.gguf.source import GgufSource, frequency_factors
from forerun.models.layouts import layout_of
from forerun.models.tokenizer import read_gguf_tokenizer

_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class StoredGguf:
    """Implements `forerun.models.stored.StoredModel`.

    Args:
        path: of the file, or of any part of a split one.

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
        return {}

    def tokenizer(self, config: Any) -> Any:
        return read_gguf_tokenizer(self.header.path)

    def architecture(self, config: Any) -> Architecture:
        shape = read_architecture(config)
        return replace(shape, frequency_factors=frequency_factors(self.header))

    def source(self, config: Any) -> GgufSource:
        shape = self.architecture(config)
        return GgufSource(self.header, layout_of(shape), shape)

    def dtype(self, config: Any) -> torch.dtype | None:
        kinds = {tensor.kind for tensor in self.header.tensors.values() if len(tensor.shape) > 1}
        return _FLOATS.get(next(iter(kinds))) if len(kinds) == 1 else None

    @cached_property
    def file_type(self) -> str:
        """The type of most weights, such as `q4_1`."""
        sizes: dict[str, int] = {}
        for tensor in self.header.tensors.values():
            sizes[tensor.kind.name] = sizes.get(tensor.kind.name, 0) + tensor.nbytes
        return max(sizes, key=lambda kind: sizes[kind]).lower()
