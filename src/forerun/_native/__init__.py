"""Python interface of the compiled kernels: their availability, and the reason if there are none.

Imports nothing of forerun.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun._native import kernels
else:
    kernels: Any = None

AVAILABLE = False
REASON = ""
try:
    kernels = importlib.import_module("forerun._native.kernels")
    AVAILABLE = True
except ModuleNotFoundError:
    REASON = (
        "there was no C++17 compiler when forerun was installed, or the build failed: "
        "'pip install -v' shows it"
    )
except ImportError as error:  # Built for another machine.
    REASON = str(error)

__all__ = ["AVAILABLE", "REASON", "kernels"]
