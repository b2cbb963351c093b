"""Data caches of the processor, as the system describes them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Assumed for a processor that the system does not describe.
_USUAL = 16 * 2**20


class ProcessorCache(NamedTuple):
    """A data cache of the first processor.

    Attributes:
        level: 1 for the nearest.
        nbytes: size in bytes.
        sharers: number of processors that share it.
    """

    level: int
    nbytes: int
    sharers: int

    def of_threads(self, threads: int) -> int:
        """Bytes at this level that `threads` threads have together, each on a processor of its own."""
        return self.nbytes * max(1, threads // self.sharers)


def data_caches() -> list[ProcessorCache]:
    """All caches that hold data, the nearest first; empty if the system does not describe them."""
    found = []
    for folder in FOLDER.glob("index*"):
        size, kind = _read(folder, "size"), _read(folder, "type")
        level = _read(folder, "level")
        if kind != "Instruction" and size[-1:] in _UNITS and size[:-1].isdecimal():
            nbytes = int(size[:-1]) * _UNITS[size[-1]]
            sharers = _count(_read(folder, "shared_cpu_list"))
            found.append(ProcessorCache(int(level) if level.isdecimal() else 0, nbytes, sharers))
    return sorted(found)


def last_level_cache() -> int:
    """Bytes of the processor's largest cache; 16 MiB if the system does not describe it."""
    return max((cache.nbytes for cache in data_caches()), default=_USUAL)


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _count(processors: str) -> int:
    """Number of processors that a list such as `0-3,8` names; 1 if it cannot be read."""
    ends = [part.split("-") for part in processors.split(",")]
    if not all(end.isdecimal() for pair in ends for end in pair):
        return 1
    return sum(int(pair[-1]) - int(pair[0]) + 1 for pair in ends)
