"""Shared by all tests."""

import os
import tempfile
from collections.abc import Iterator

# One thread a process, subprocesses too: toy models are faster so, and test processes run side by
# side. The variables are read when the libraries are imported.
# What policies measure is kept for this run alone.
os.environ.update(OMP_NUM_THREADS="1", FORERUN_THREADS="1", FORERUN_CACHE=tempfile.mkdtemp())

import pytest
import torch
from hypothesis import HealthCheck, settings

from forerun import _native

torch.set_num_threads(1)
pytest.register_assert_rewrite("tests.helpers")

# The same examples in every run, however slow the machine is.
settings.register_profile(
    "forerun", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("forerun")


@pytest.fixture(params=["compiled", "torch"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of what sampling and verification do with rows."""
    if request.param == "compiled" and not _native.AVAILABLE:
        pytest.skip("built without kernels")
    monkeypatch.setattr(_native, "AVAILABLE", request.param == "compiled")
    return str(request.param)


@pytest.fixture
def other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package is installed, and a broken one."""
    from tests.helpers.other_package import entry_points_of

    monkeypatch.setattr("forerun.registry.entry_points_of", entry_points_of)


@pytest.fixture
def tiny_shapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models for benchmarks that take no time, as `tiny` and `tiny-tied`."""
    from forerun.bench.shapes import SHAPES
    from forerun.costs.shapes import ModelShape

    for name, tied in {"tiny": False, "tiny-tied": True}.items():
        monkeypatch.setitem(SHAPES, name, ModelShape(2, 64, 4, 2, 16, 128, 96, tied=tied))
    monkeypatch.setattr("forerun.bench.shapes.MODELS", ("zoo", *SHAPES))
    # A small cache takes no time to read.
    monkeypatch.setattr("forerun.bench.machine.last_level_cache", lambda: 1 << 21)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
