"""The backends that a test of our own decoders runs on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from forerun import _native
from tests.helpers.tiny_models import NATIVE

needs_kernels = pytest.mark.skipif(not _native.AVAILABLE, reason=_native.REASON)
BACKENDS = ["torch", pytest.param("kernels", marks=needs_kernels)]


def on_both(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize `name` and `backend`: both for our own decoders, torch for the adapter's models."""
    cases = []
    for name in names:
        cases.append(pytest.param(name, "torch", id=f"{name}-torch"))
        if name in NATIVE:
            cases.append(pytest.param(name, "kernels", id=f"{name}-kernels", marks=needs_kernels))
    return pytest.mark.parametrize(("name", "backend"), cases)
