"""Checkpoints as transformers saves them, for engines that read no others: of random weights, and the zoo's
target."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.shapes import RANDOM_SHAPES, RandomSource, config_of
from forerun.costs.shapes import ModelShape
from forerun.engine.engine import Engine
from forerun.files import atomic_path, write_text
from forerun.models.architecture import read_architecture
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import as_transformers
from forerun.models.zoo import packaged_path


def write_checkpoint(name: str, directory: Path) -> Path:
    """The checkpoint of random weights that other engines read, made now unless it is there."""
    weights = directory / "model.safetensors"
    if weights.exists():
        return directory
    return _write(RANDOM_SHAPES[name], directory)


def untrained_like(engine: Engine, directory: Path) -> Path:
    """A draft model of random weights with an engine's vocabulary and tokenizer."""
    assert engine.tokenizer is not None, "loaded by name"
    vocab = len(engine.tokenizer)  # type: ignore[arg-type]
    shape = ModelShape(3, 128, 4, 2, 32, 384, vocab, tied=True)
    engine.tokenizer.save_pretrained(directory)  # type: ignore[attr-defined]
    return _write(shape, directory)


def zoo_target(directory: Path, file: Path | None = None) -> Path:
    """The zoo's target in bf16, made now unless it is there.

    Args:
        file: a GGUF file of it with layers added; None: its own.
    """
    if (directory / "model.safetensors").exists():
        return directory
    checkpoint = Checkpoint.open(packaged_path("zoo") if file is None else file)
    config, source = as_transformers(checkpoint.config), checkpoint.source()
    config.dtype, config.architectures = torch.bfloat16, ["Qwen3ForCausalLM"]
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    checkpoint.tokenizer.save_pretrained(directory)
    write_text(
        directory / "generation_config.json", json.dumps({"eos_token_id": 0, "pad_token_id": 0})
    )
    with atomic_path(directory / "model.safetensors") as temporary:
        tensors = {key: source.read(key).bfloat16() for key in source.shapes}
        save_file(tensors, temporary, metadata={"format": "pt"})
    return directory


def _write(shape: ModelShape, directory: Path) -> Path:
    config = config_of(shape)
    source = RandomSource(read_architecture(config))
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    with atomic_path(directory / "model.safetensors") as temporary:
        tensors = {key: source.read(key).clone() for key in source.shapes}
        save_file(tensors, temporary, metadata={"format": "pt"})
    return directory


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a checkpoint of random weights.")
    parser.add_argument("name", choices=sorted(RANDOM_SHAPES))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    write_checkpoint(options.name, options.folder)
