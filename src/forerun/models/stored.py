"""How a model is stored: as a directory of safetensors, or as one GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from forerun.models.architecture import Architecture, read_architecture
from forerun.models.config import read_config, read_end_tokens
from forerun.models.generation import read_sampling_defaults
from forerun.models.gguf.stored import StoredGguf
from forerun.models.hub import Location
from forerun.models.sources import SafetensorsSource, Source, has_weights, with_own_head
from forerun.models.tokenizer import read_tokenizer


class StoredModel(Protocol):
    """What is read of a model before it is loaded; each raises `CheckpointError` for broken files."""

    def config(self) -> Any:
        """Of transformers, checked."""

    def end_tokens(self, config: Any) -> frozenset[int]:
        """The tokens that end a text."""

    def sampling_defaults(self) -> dict[str, Any]:
        """The sampling parameters that it recommends, by name."""

    def tokenizer(self, config: Any) -> Any:
        """Of transformers."""

    def architecture(self, config: Any) -> Architecture:
        """The shape of a model that forerun's own decoder runs, with what only the weights say."""

    def source(self, config: Any) -> Source:
        """Its weights, of which nothing is read yet."""

    def dtype(self, config: Any) -> torch.dtype | None:
        """Of the weights; None where that is not known."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how its files are read, a sentence each."""

    @property
    def quantized(self) -> bool:
        """Whether the kernels can hold its weights as they are; then `source` is a `CodedSource`."""


class StoredDirectory:
    """A directory as transformers saves a model.

    Args:
        directory: with its files; the weights may still be missing.
    """

    notes: tuple[str, ...] = ()
    quantized = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def config(self) -> Any:
        return read_config(self._directory)

    def end_tokens(self, config: Any) -> frozenset[int]:
        return read_end_tokens(self._directory, config)

    def sampling_defaults(self) -> dict[str, Any]:
        return read_sampling_defaults(self._directory)

    def tokenizer(self, config: Any) -> Any:
        return read_tokenizer(self._directory, config)

    def architecture(self, config: Any) -> Architecture:
        shape = read_architecture(config)
        here = shape.tied and has_weights(self._directory)
        return with_own_head(shape, self.source(config)) if here else shape

    def source(self, config: Any) -> Source:
        return SafetensorsSource(self._directory)

    def dtype(self, config: Any) -> torch.dtype | None:
        if config.dtype is not None or not has_weights(self._directory):
            known = config.dtype
            return known if isinstance(known, torch.dtype) else None
        source = self.source(config)
        return source.slice(next(iter(source.shapes)), 0, 0, 1).dtype


def stored_at(location: Location) -> StoredModel:
    """What lies at a location.

    Raises:
        CheckpointError, UnsupportedModelError: for a GGUF file that cannot be read.
    """
    if location.file is None:
        return StoredDirectory(location.directory)
    return StoredGguf(location.file)
