"""A head as it is published: its config, its tensors, and what they say about its shape."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.errors import CheckpointError, UnsupportedModelError, shown
from forerun.models.config import read_object

EAGLE3, DSPARK, MEDUSA = "eagle3", "dspark", "medusa"
RECORD = "forerun.json"

# Weight files, in the order in which engines look for them.
_WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
)
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, eq=False)
class PublishedHead:
    """A head's directory, read without judging it.

    Attributes:
        name: as the user named it.
        config: config.json.
        tensors: by published name, as stored.
        record: forerun.json; empty for a head that was not trained here.
        weight_files: names of all files with weights; engines read the first.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any] = field(default_factory=dict)
    weight_files: tuple[str, ...] = ()

    @cached_property
    def kind(self) -> str:
        """`eagle3`, `dspark` or `medusa`.

        Raises:
            UnsupportedModelError: for a head of another kind.
        """
        named = [str(self.config.get("speculators_model_type", "")), *self.architectures]
        for kind in (EAGLE3, DSPARK, MEDUSA):
            if any(kind in name.lower() for name in named):
                return kind
        names = {name.split(".")[0] for name in self.weights}
        if "medusa_num_heads" in self.config:
            return MEDUSA
        if "markov_head" in names or "markov_rank" in self.config:
            return DSPARK
        if "draft_vocab_size" in self.config or {"fc", "d2t"} <= names:
            return EAGLE3
        raise UnsupportedModelError(
            f"{self.name} is not a head that forerun knows (architectures "
            f"{shown(list(self.architectures))}); it checks EAGLE-3, DSpark and Medusa."
        )

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """The names by which engines choose their class."""
        names = self.config.get("architectures") or ()
        return tuple(map(str, names)) if isinstance(names, (list, tuple)) else (str(names),)

    @property
    def wrapped(self) -> bool:
        """Whether it is in the format of speculators, with the layers' config inside another."""
        return "speculators_model_type" in self.config

    @cached_property
    def layers(self) -> Mapping[str, Any]:
        """The config of the decoder layers."""
        inner = self.config.get("transformer_layer_config")
        return inner if self.wrapped and isinstance(inner, Mapping) else self.config

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The tensors by the names of speculators: `layers.0` for `midlayer`, no `model.` before."""
        return {own_name(name): tensor for name, tensor in self.tensors.items()}

    def nested(self, key: str) -> Mapping[str, Any]:
        """A part of the config that is a mapping; empty where it is missing."""
        part = self.config.get(key)
        return part if isinstance(part, Mapping) else {}

    def bytes_of(self, names: Iterator[str] | set[str] | list[str]) -> int:
        """Bytes of the tensors with these names, as stored."""
        return sum(self.weights[name].nbytes for name in set(names) if name in self.weights)


def own_name(name: str) -> str:
    """A published tensor's name in the layout of speculators."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def read_head(path: str | os.PathLike[str]) -> PublishedHead:
    """Read a head's directory.

    Raises:
        CheckpointError: for missing or broken files.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise CheckpointError(f"{path} is not a directory; name the directory of a trained head.")
    config = read_object(directory / "config.json")
    record = directory / RECORD
    files = tuple(name for name in (_INDEX, *_WEIGHTS) if (directory / name).is_file())
    if not files:
        raise CheckpointError(f"{path} has no weights; it needs {' or '.join(_WEIGHTS)}.")
    tensors: dict[str, Tensor] = {}
    for file in _shards(directory, files[0]):
        tensors |= _load(file)
    content = read_object(record) if record.is_file() else {}
    return PublishedHead(os.fspath(path), config, tensors, content, files)


def _shards(directory: Path, first: str) -> list[Path]:
    if first != _INDEX:
        return [directory / first]
    names = read_object(directory / _INDEX).get("weight_map")
    if not isinstance(names, Mapping) or not names:
        raise CheckpointError(f"{directory / _INDEX} has no weight_map; download it again.")
    return [directory / Path(str(name)).name for name in dict.fromkeys(names.values())]


def _load(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as problem:  # Both libraries raise many kinds for broken files.
        raise CheckpointError(f"{file} cannot be read as tensors; download it again.") from problem
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise CheckpointError(f"{file} does not hold tensors by name; save a state_dict.")
    return loaded
