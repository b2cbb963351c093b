"""Checkpoints of random weights, for engines that read files."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from forerun.bench.shapes import SHAPES, RandomSource
from forerun.files import atomic_path
from forerun.models.architecture import read_architecture


def write_checkpoint(name: str, directory: Path) -> Path:
    """The checkpoint of random weights that other engines read, made now unless it is there."""
    weights = directory / "model.safetensors"
    if weights.exists():
        return directory
    config = SHAPES[name].config()
    source = RandomSource(read_architecture(config))
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    with atomic_path(weights) as temporary:
        tensors = {key: source.read(key).clone() for key in source.shapes}
        save_file(tensors, temporary, metadata={"format": "pt"})
    return directory
