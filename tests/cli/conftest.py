"""A tiny pair of models with a tokenizer, and ways to run the command line on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers.cli_pair import save_pair
from tests.helpers.command_line import Cli, Write


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the machine reaches a test, and no test takes all cores."""
    for name in list(os.environ):
        kept = name in ("FORERUN_CACHE", "FORERUN_KERNELS")
        if (name.startswith("FORERUN_") and not kept) or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Directories of a target and of a draft model."""
    return save_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture
def cli(pair: tuple[str, str]) -> Cli:
    return Cli(*pair)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(name, content)` makes a file and returns its path."""

    def make(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return make
