"""Packages of the extra `peers`, and the paths of checkpoints converted for them."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

from forerun.errors import ConfigError


def import_package(module: str) -> Any:
    """A package of the extra `peers`.

    Raises:
        ConfigError: when it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ConfigError(
            f"this peer needs the package {module}; run: pip install 'forerun[peers]'."
        ) from None


def converted(cache_dir: Path, checkpoint_dir: Path, suffix: str) -> Path:
    """The path of a converted checkpoint: its name has a hash of the weights."""
    files = [*sorted(checkpoint_dir.glob("*.safetensors")), checkpoint_dir / "config.json"]
    hashes = "".join(content_hash(file) for file in files)
    digest = hashlib.sha256(hashes.encode()).hexdigest()
    return cache_dir / f"{checkpoint_dir.name}-{digest[:12]}-{suffix}"


def content_hash(path: Path) -> str:
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
