"""Forms in which a model is stored: a directory of safetensors, or one GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from forerun.models.architecture import Architecture, read_architecture
from forerun.models.config import read_config, read_end_tokens, read_sampling_defaults
from forerun.models.gguf.stored import StoredGguf
from forerun.models.hub import Location
from forerun.models.sources import SafetensorsSource, Source, has_weights, with_own_head
from forerun.models.stacked import taken_apart
from forerun.models.tokenizer import has_tokenizer, read_tokenizer


class StoredModel(Protocol):
    """The parts of a model that are read before it is loaded.

    All methods raise `CheckpointError` for broken files.
    """

    def config(self) -> Any:
        """The checked config of transformers."""

    def end_tokens(self, config: Any) -> frozenset[int]:
        """The tokens that end a text."""

    def sampling_defaults(self) -> dict[str, Any]:
        """The sampling parameters that the model recommends, by name."""

    @property
    def has_tokenizer(self) -> bool:
        """True if a tokenizer comes with the model."""

    def tokenizer(self, config: Any) -> Any:
        """The model's tokenizer, of transformers."""

    def architecture(self, config: Any) -> Architecture:
        """Architecture of a model on forerun's own decoder, including facts that only its weights show."""

    def source(self, config: Any) -> Source:
        """The model's weights, none of which is read yet."""

    def dtype(self, config: Any) -> torch.dtype | None:
        """Type of the weights; None if it is unknown."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the files are read, one sentence each."""

    @property
    def quantized(self) -> bool:
        """True if the kernels can hold the weights as stored; then `source` is a `CodedSource`."""


class StoredDirectory:
    """A directory in the form in which transformers saves a model.

    Args:
        directory: directory of the files; the weights may still be missing.
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

    @property
    def has_tokenizer(self) -> bool:
        return has_tokenizer(self._directory)

    def tokenizer(self, config: Any) -> Any:
        return read_tokenizer(self._directory, config)

    def architecture(self, config: Any) -> Architecture:
        shape = read_architecture(config)
        here = shape.tied and has_weights(self._directory)
        return with_own_head(shape, self.source(config)) if here else shape

    def source(self, config: Any) -> Source:
        return taken_apart(SafetensorsSource(self._directory))

    def dtype(self, config: Any) -> torch.dtype | None:
        if config.dtype is not None or not has_weights(self._directory):
            known = config.dtype
            return known if isinstance(known, torch.dtype) else None
        source = self.source(config)
        return source.slice(next(iter(source.shapes)), 0, 0, 1).dtype


def stored_at(location: Location) -> StoredModel:
    """The stored model at a location.

    Raises:
        CheckpointError, UnsupportedModelError: for a GGUF file that cannot be read.
    """
    if location.file is None:
        return StoredDirectory(location.directory)
    return StoredGguf(location.file)
