"""Checkpoints of random weights, for engines that read files."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from forerun.bench.shapes import SHAPES, RandomSource, Shape
from forerun.engine.engine import Engine
from forerun.files import atomic_path
from forerun.models.architecture import read_architecture


def write_checkpoint(name: str, directory: Path) -> Path:
    """The checkpoint of random weights that other engines read, made now unless it is there."""
    weights = directory / "model.safetensors"
    if weights.exists():
        return directory
    return _write(SHAPES[name], directory)


def untrained_like(engine: Engine, directory: Path) -> Path:
    """A draft model of random weights with an engine's vocabulary and tokenizer."""
    assert engine.tokenizer is not None, "loaded by name"
    vocab = len(engine.tokenizer)  # type: ignore[arg-type]
    shape = Shape("llama", 128, 3, 4, 384, vocab, kv_heads=2, tied=True)
    engine.tokenizer.save_pretrained(directory)  # type: ignore[attr-defined]
    return _write(shape, directory)


def _write(shape: Shape, directory: Path) -> Path:
    config = shape.config()
    source = RandomSource(read_architecture(config))
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    with atomic_path(directory / "model.safetensors") as temporary:
        tensors = {key: source.read(key).clone() for key in source.shapes}
        save_file(tensors, temporary, metadata={"format": "pt"})
    return directory
