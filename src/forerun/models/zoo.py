"""Where the small models that come with forerun lie: the data package forerun-zoo."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Any

from forerun.errors import CheckpointError

ZOO_MODELS = {"zoo": "target", "zoo-draft": "draft"}


def is_zoo(name: Any) -> bool:
    """Whether `name` is one of the zoo's models rather than a path or a hub id; a `Path` never is."""
    return isinstance(name, str) and name in ZOO_MODELS


def zoo_path(name: str = "zoo") -> Path:
    """The checkpoint directory of a zoo model.

    Raises:
        CheckpointError: where the package is not installed.
    """
    try:
        root = importlib.resources.files("forerun_zoo")
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"{name!r} is a model of the package forerun-zoo, which is not installed; "
            "run 'pip install ./zoo' in forerun's repository or give --model."
        ) from error
    return Path(str(root)) / ZOO_MODELS[name]
