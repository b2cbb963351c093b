"""What a result was made with: versions and hardware."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from forerun import __version__


def versions() -> dict[str, str]:
    """Versions of what the output depends on."""
    import transformers

    return {
        "forerun": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine, the threads that torch uses, and the device of the model."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": f"{device} ({name})" if name else str(device),
    }


def cpu_name() -> str:
    """The processor's name as it gives it itself, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # Not Linux.
    return platform.processor() or platform.machine()
