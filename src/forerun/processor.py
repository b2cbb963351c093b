"""The name of the processor."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Name of the processor, as far as the system knows it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # Not Linux.
    return platform.processor() or platform.machine()
