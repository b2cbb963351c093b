"""A published head: its config, its tensors, and what they say about its shape."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from forerun.errors import UnsupportedModelError, shown
from forerun.heads import HEADS, kind_of
from forerun.heads.files import HeadFiles

EAGLE3, DSPARK, MEDUSA = "eagle3", "dspark", "medusa"

WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
)
"""Weight files, in the order in which engines look for them."""


@dataclass(frozen=True, eq=False)
class PublishedHead:
    """A head as read from its files, without judgement.

    Attributes:
        name: name given by the user.
        config: content of config.json.
        tensors: tensors by published name, as stored.
        record: content of forerun.json; empty for a head that forerun did not train.
        weight_files: names of all files with weights; engines read the first.
        in_few_bits: True if matrices are stored as codes with scales.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any] = field(default_factory=dict)
    weight_files: tuple[str, ...] = ()
    in_few_bits: bool = False

    @cached_property
    def kind(self) -> str:
        """Kind of the head: `eagle3`, `dspark` or `medusa`.

        Raises:
            UnsupportedModelError: for a head of another kind.
        """
        kind, stored = kind_of(self.config), {name.split(".")[0] for name in self.weights}
        if kind is None:  # A name that no engine knows is a finding, not an error.
            named = " ".join(self.architectures).lower()
            kind = next((known for known in HEADS if known in named), None)
        if kind is None and "markov_head" in stored:
            return DSPARK
        if kind is None and {"fc", "layers"} <= stored and "draft_vocab_size" in self.config:
            return EAGLE3
        known = (EAGLE3, DSPARK, MEDUSA)
        if kind in known and "LlamaForCausalLMEagle" not in self.architectures:
            return kind
        raise UnsupportedModelError(
            f"{self.name} is not a head that forerun knows (architectures "
            f"{shown(list(self.architectures))}); it checks EAGLE-3, DSpark and Medusa."
        )

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """Names by which engines choose their class."""
        names = self.config.get("architectures") or ()
        return tuple(map(str, names)) if isinstance(names, (list, tuple)) else (str(names),)

    @property
    def wrapped(self) -> bool:
        """True for the format of speculators, in which the layers' config lies inside another."""
        return "speculators_model_type" in self.config

    @cached_property
    def layers(self) -> Mapping[str, Any]:
        """Config of the decoder layers."""
        inner = self.config.get("transformer_layer_config")
        return inner if self.wrapped and isinstance(inner, Mapping) else self.config

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Tensors by their names in speculators: `layers.0` for `midlayer`, and no prefix `model.`."""
        return {own_name(name): tensor for name, tensor in self.tensors.items()}

    def nested(self, key: str) -> Mapping[str, Any]:
        """A nested mapping of the config; empty if it is missing."""
        part = self.config.get(key)
        return part if isinstance(part, Mapping) else {}

    def bytes_of(self, names: Iterator[str] | set[str] | list[str]) -> int:
        """Bytes of the tensors with these names, as stored."""
        return sum(self.weights[name].nbytes for name in set(names) if name in self.weights)


def own_name(name: str) -> str:
    """Name of a published tensor in the layout of speculators."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def read_head(name: str | os.PathLike[str]) -> PublishedHead:
    """Read a head from a directory or a hub id.

    Raises:
        CheckpointError: for missing or broken files, and for weights that are not numbers.
    """
    files = HeadFiles.open(name)
    tensors = files.tensors
    stored = tuple(file for file in WEIGHTS if (files.directory / file).is_file())
    return PublishedHead(files.name, files.config, tensors, files.own, stored, files.in_few_bits)
