"""The stub of the kernels is what nanobind makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from nanobind.stubgen import StubGen

from forerun import _native

pytestmark = pytest.mark.skipif(not _native.AVAILABLE, reason="built without kernels")


def test_the_stub_is_current() -> None:
    generator = StubGen(_native.kernels)
    generator.put(_native.kernels)
    stub = Path(_native.__file__).with_name("kernels.pyi")
    assert stub.read_text(encoding="utf-8") == generator.get(), "run 'make stub'"
