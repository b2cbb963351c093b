"""Tiny random checkpoints that transformers saved, and the same models loaded by forerun."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.tiny_models import tiny_model


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def reference() -> Callable[[str], Any]:
    """The model of transformers, in float32, by family."""
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            made[name] = tiny_model(name)
        return made[name]

    return get


@pytest.fixture(scope="session")
def checkpoint(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A directory that transformers saved the family's model to."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            reference(name).save_pretrained(made[name])
        return made[name]

    return get


@pytest.fixture(scope="session")
def load(checkpoint: Any) -> Callable[..., Any]:
    """The same model, loaded by forerun, in a dtype and on a backend."""
    from forerun.models import load_model

    made: dict[tuple[str, str, str], Any] = {}

    def get(name: str, dtype: str = "fp32", backend: str = "torch") -> Any:
        key = (name, dtype, backend)
        if key not in made:
            made[key] = load_model(checkpoint(name), dtype=dtype, device="cpu", backend=backend)
        return made[key]

    return get


@pytest.fixture
def copy(checkpoint: Any, tmp_path: Path) -> Callable[[str], Path]:
    """A family's checkpoint to be broken."""
    return lambda name: Path(shutil.copytree(checkpoint(name), tmp_path / name))
