"""The processor: its name and largest cache, and how much of it and of memory this process may use."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT, PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Assumed for a processor whose caches the system does not describe.
_USUAL_CACHE = 16 * 2**20


def cpu_limit() -> float | None:
    """Processors' worth of time that this process may use; None without a limit."""
    limits = []
    for folder in _folders("cpu"):
        # Version 2 has both numbers in one file, version 1 has a file for each.
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        quota = quota or _read(folder / "cpu.cfs_quota_us")
        period = period or _read(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_left() -> int | None:
    """Bytes that this process may still take; None without a limit."""
    left = []
    for folder in _folders("memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            # Pages of files count as used, but the system drops them when memory is needed.
            files = _statistics(folder / "memory.stat")
            cached = files.get("total_inactive_file", files.get("inactive_file", 0))
            left.append(max(int(limit) - int(used) + cached, 0))
    return min(left, default=None)


def _folders(controller: str) -> Iterator[Path]:
    """Control groups that limit this process, the innermost first; both versions of control groups."""
    for line in _read(PROCESS).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = ROOT / controller if controllers else ROOT
        group = PurePosixPath(path.lstrip("/"))
        for inner in (group, *group.parents):
            yield root / inner


def _statistics(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _read(path: Path) -> str:
    """The text of a file; empty if it is missing or unreadable."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


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


def last_level_cache() -> int:
    """Bytes of the processor's largest data cache; 16 MiB if the system does not describe it."""
    sizes = []
    for folder in CACHES.glob("index*"):
        size = _read(folder / "size")
        data = _read(folder / "type") != "Instruction"
        if data and size[-1:] in _UNITS and size[:-1].isdecimal():
            sizes.append(int(size[:-1]) * _UNITS[size[-1]])
    return max(sizes, default=_USUAL_CACHE)
