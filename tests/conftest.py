"""Shared by all tests."""

import pytest
import torch

from forerun import _native

# Toy models are faster on one thread, and results do not depend on the machine's load.
torch.set_num_threads(1)


@pytest.fixture(params=["compiled", "torch"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of what sampling and verification do with rows."""
    if request.param == "compiled" and not _native.AVAILABLE:
        pytest.skip("built without kernels")
    monkeypatch.setattr(_native, "AVAILABLE", request.param == "compiled")
    return str(request.param)
