"""The processor: its name, and how much of it this process may use."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

from forerun.container import cpu_limit


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


def cores() -> int:
    """Number of processors that this process may use, within the limit of its container."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    limit = cpu_limit()
    return allowed if limit is None else max(1, min(allowed, math.ceil(limit)))
