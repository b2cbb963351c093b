"""Shared by all tests."""
# ruff: noqa: E402

import gc
import os
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

# One thread a process, subprocesses too: toy models are faster so, and test processes run side by
# side. The variables are read when the libraries are imported.
# No file of the user is read, and what policies measure is kept for this run alone; but matplotlib
# would look for all fonts of the machine again.
HOMES = tempfile.TemporaryDirectory(prefix="forerun-homes-")
os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
os.environ.pop("XDG_CACHE_HOME", None)
os.environ.update(OMP_NUM_THREADS="1", FORERUN_THREADS="1")
os.environ.update(HOME=HOMES.name, FORERUN_CACHE=f"{HOMES.name}/cache")

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.helpers")

from forerun import _native
from forerun.engine.guarded import GuardedDrafter
from forerun.engine.requests import Running
from forerun.policies import calibration
from tests.helpers.skips import pytest_addoption, pytest_runtest_makereport

__all__ = ["pytest_addoption", "pytest_runtest_makereport"]  # hooks

torch.set_num_threads(1)

# The same examples in every run, however slow the machine is.
settings.register_profile(
    "whole", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("whole"), max_examples=30)
settings.load_profile("whole")


def pytest_configure(config: pytest.Config) -> None:
    """Fewer examples where the slow tests are left out."""
    if config.option.markexpr == "not slow":
        settings.load_profile("quick")


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no collection of garbage goes through it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end everything is let go, or the kernels report what leaked."""
    gc.unfreeze()


_numbers = count()


@pytest.fixture(autouse=True)
def empty_home(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home and cache folder of one test; nothing is there that another one measured."""
    home = Path(HOMES.name, str(next(_numbers)))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("FORERUN_CACHE", str(home / "cache"))
    return home


@pytest.fixture(autouse=True, scope="session")
def _engine_of_tests() -> Iterator[None]:
    """Engines as tests want them: few timed passes, and assertions that reach the test.

    Policy `auto` times its target anew in every empty home. An engine would go on without the draft of a
    drafter that raises.
    """
    note = GuardedDrafter._note

    def raising(self: GuardedDrafter, error: Exception, running: Running) -> None:
        if isinstance(error, AssertionError):
            raise error
        note(self, error, running)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "PASSES", 3)
        patch.setattr(GuardedDrafter, "_note", raising)
        yield


@pytest.fixture(params=["compiled", "torch"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of what sampling and verification do with rows."""
    if request.param == "compiled" and not _native.AVAILABLE:
        pytest.skip("built without kernels")
    monkeypatch.setattr(_native, "AVAILABLE", request.param == "compiled")
    return str(request.param)


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs enumerate rules on the smaller vocabulary alone; `tests/testing` does on both."""
    from forerun.testing.verifier_check import default_cases

    monkeypatch.setattr("forerun.proof.enumeration.default_cases", lambda: default_cases((3,)))


@pytest.fixture
def other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package is installed, and a broken one."""
    from tests.helpers.other_package import entry_points_of

    monkeypatch.setattr("forerun.registry.entry_points_of", entry_points_of)


@pytest.fixture
def tiny_shapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models for benchmarks that take no time, as `tiny` and `tiny-tied`."""
    from benchmarks.shapes import RANDOM_SHAPES, open_model
    from forerun.costs.shapes import ModelShape
    from forerun.models.checkpoint import Checkpoint

    for name, tied in {"tiny": False, "tiny-tied": True}.items():
        monkeypatch.setitem(RANDOM_SHAPES, name, ModelShape(2, 64, 4, 2, 16, 128, 96, tied=tied))
    monkeypatch.setattr("benchmarks.shapes.MODELS", ("zoo", *RANDOM_SHAPES))
    opened = Checkpoint.open

    def open_shape(name: str, revision: str | None = None) -> Checkpoint:
        return open_model(name) if name in RANDOM_SHAPES else opened(name, revision)

    monkeypatch.setattr(Checkpoint, "open", open_shape)
    # A small cache takes no time to read.
    monkeypatch.setattr("forerun.bench.forwards.last_level_cache", lambda: 1 << 21)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
