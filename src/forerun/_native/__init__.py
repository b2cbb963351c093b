"""Python interface of the compiled kernels: their availability, and the reason if there are none.

The variable FORERUN_KERNELS names the highest instruction set that they may use, or turns them off.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from forerun.errors import ConfigError

if TYPE_CHECKING:
    from forerun._native import kernels
else:
    kernels: Any = None

VARIABLE = "FORERUN_KERNELS"
ALLOWED = ("amx", "avx512", "avx2", "portable", "off")

AVAILABLE = False
REASON = ""
_asked = os.environ.get(VARIABLE) or ALLOWED[0]
if _asked not in ALLOWED:
    raise ConfigError(f"{VARIABLE} is {_asked!r}; it must be one of {', '.join(ALLOWED)}.")
if _asked == "off":
    REASON = f"{VARIABLE} is off"
else:
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
