"""The compiled kernels' Python face: what is there, and why not. Imports nothing of forerun."""

from __future__ import annotations

try:
    from forerun._native import kernels
except ImportError as error:  # Built without a compiler, or for another machine.
    AVAILABLE = False
    REASON = f"{type(error).__name__}: {error}"
else:
    AVAILABLE = True
    REASON = ""

__all__ = ["AVAILABLE", "REASON", "kernels"]
