"""Paths of the small diffusion models that come with forerun-zoo, as ordinary diffusers pipelines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from forerun.errors import CheckpointError

PIPELINES = ("images", "images-4-steps")
CLASSIFIER = "classifier.safetensors"


def shipped(name: str) -> Path:
    """Path of a file or folder among forerun-zoo's diffusion models.

    Raises:
        CheckpointError: if forerun-zoo is not installed, or lacks it.
    """
    package = find_spec("forerun_zoo")
    if package is None or not package.submodule_search_locations:
        raise CheckpointError(
            f"{name!r} comes with forerun-zoo; run: pip install ./zoo in forerun's repository."
        )
    path = Path(package.submodule_search_locations[0]) / "diffusion" / name
    if not path.exists():
        raise CheckpointError(f"the installed forerun-zoo has no diffusion model {name!r}.")
    return path


def resolve(name: str) -> Path:
    """Path of a shipped pipeline by its name; any other name is a directory."""
    return shipped(name) if name in PIPELINES else Path(name)
