"""The processor's largest cache, as the system describes it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Assumed for a processor that the system does not describe.
_USUAL = 16 * 2**20


def last_level_cache() -> int:
    """Bytes of the processor's largest data cache; 16 MiB if the system does not describe it."""
    sizes = []
    for folder in FOLDER.glob("index*"):
        size = _read(folder, "size")
        if _read(folder, "type") != "Instruction" and size[-1:] in _UNITS and size[:-1].isdecimal():
            sizes.append(int(size[:-1]) * _UNITS[size[-1]])
    return max(sizes, default=_USUAL)


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
