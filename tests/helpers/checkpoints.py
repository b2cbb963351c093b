"""Changing checkpoints on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file


def edit(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the tensors of a checkpoint in place."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
