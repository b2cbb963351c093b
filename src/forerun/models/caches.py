"""The processor's caches, as the system describes them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Of a processor that is not described.
_USUAL = 16 * 2**20


class Cache(NamedTuple):
    """A cache of the first processor.

    Attributes:
        level: 1 for the nearest.
        nbytes: of it.
        sharers: processors that have it together.
    """

    level: int
    nbytes: int
    sharers: int

    def of_threads(self, threads: int) -> int:
        """Bytes that so many threads, each on a processor of its own, have at this level."""
        return self.nbytes * max(1, threads // self.sharers)


def data_caches() -> list[Cache]:
    """All that hold data, the nearest first; empty where the system does not say."""
    found = []
    for folder in FOLDER.glob("index*"):
        size, kind = _read(folder, "size"), _read(folder, "type")
        level = _read(folder, "level")
        if kind != "Instruction" and size[-1:] in _UNITS and size[:-1].isdecimal():
            nbytes = int(size[:-1]) * _UNITS[size[-1]]
            sharers = _count(_read(folder, "shared_cpu_list"))
            found.append(Cache(int(level) if level.isdecimal() else 0, nbytes, sharers))
    return sorted(found)


def last_level_cache() -> int:
    """Bytes of the processor's largest cache; 16 MiB where the system does not say."""
    return max((cache.nbytes for cache in data_caches()), default=_USUAL)


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _count(processors: str) -> int:
    """How many a list such as `0-3,8` names; 1 where it cannot be read."""
    ends = [part.split("-") for part in processors.split(",")]
    if not all(end.isdecimal() for pair in ends for end in pair):
        return 1
    return sum(int(pair[-1]) - int(pair[0]) + 1 for pair in ends)
