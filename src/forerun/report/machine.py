"""Versions and hardware, with which every object of `--json` begins.

Only functions that need torch load it: some commands do without.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

from forerun import __version__
from forerun.processor import cpu_name

if TYPE_CHECKING:
    import torch

SCHEMA_VERSION = 1


def made_with(device: torch.device | None) -> dict[str, Any]:
    """Beginning of every object: versions and hardware, without those of torch where no model runs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "versions": versions_without_torch() if device is None else versions(),
        "hardware": host() if device is None else hardware(device),
    }


def versions_without_torch() -> dict[str, str]:
    """Versions of the packages that formulas and simulations depend on."""
    import numpy

    return {
        "forerun": __version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that the output depends on."""
    import torch
    import transformers

    return {
        "forerun": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine, the threads that models run on, and the device of the model."""
    import torch

    from forerun.models.cpu.threads import threads_in_use

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        **host(),
        "threads": threads_in_use(),
        "device": f"{device} ({name})" if name else str(device),
    }


def host() -> dict[str, Any]:
    """The machine alone, for commands that run no model."""
    return {"cpu": cpu_name(), "cores": os.cpu_count()}
