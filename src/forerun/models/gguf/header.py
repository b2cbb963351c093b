"""The header of a GGUF file: metadata, and the places of its tensors, which are not read.

`gguf.GGUFReader` takes seconds for a vocabulary, string by string, and trusts every length in the
file.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from forerun.errors import CheckpointError, UnsupportedModelError, shown
from forerun.files import is_regular, printable, reason

VERSIONS = (2, 3)

_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_MOST_DIMENSIONS = 4
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class StoredTensor:
    """Place and format of a stored tensor.

    Args:
        shape: rows first, as in torch.
        kind: type of its values or blocks.
        file: the file that holds it.
        start: offset of its first byte in the file.
    """

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    file: Path
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; a vector is one row."""
        per_block, block_bytes = GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // int(per_block) * int(block_bytes)

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def bytes(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """Read rows [start, stop) as they are stored, [rows, row_bytes].

        Raises:
            CheckpointError: if the file has become shorter or unreadable.
        """
        rows = (self.rows if stop is None else stop) - start
        count, first = rows * self.row_bytes, self.start + start * self.row_bytes
        try:
            # A memory map takes ten times as long to open as a file.
            read = np.fromfile(self.file, np.uint8, count, offset=first)
            return read.reshape(rows, self.row_bytes)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.file} can no longer be read ({error}).") from error


@dataclass(frozen=True)
class GgufHeader:
    """Metadata and tensors of a GGUF file; of a split file, of all parts together.

    Args:
        path: path of the file, or of its first part.
        metadata: values by key.
        tensors: tensors by name.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def read(cls, path: Path) -> GgufHeader:
        """Read the header of a file, and of the other parts of a split one.

        Raises:
            CheckpointError: for a file that is not GGUF, is cut off or inconsistent, and for a
                missing part.
            UnsupportedModelError: for a version or a type of tensor that is not known.
        """
        metadata, tensors = _read(path)
        count = metadata.get("split.count", 1)
        if count in (0, 1):
            return cls(path, metadata, tensors)
        named = _PART.fullmatch(path.name)
        if type(count) is not int or named is None or int(named[3]) != count:
            raise CheckpointError(
                f"{path} is part of a split file of {shown(count)} parts, but is not called "
                "NAME-00001-of-0000N.gguf; give it its own name again."
            )
        parts = [
            path.with_name(f"{named[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)
        ]
        missing = [part for part in parts if not is_regular(part)]
        if missing:
            raise CheckpointError(
                f"{path.name} is split into {count} parts and {missing[0].name} is missing in "
                f"{path.parent}; download it."
            )
        return cls(parts[0], *_together(parts))


class _Bytes:
    """The bytes of a file and the position up to which they have been read."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.at = path, content, 0

    def numbers(self, letters: str, count: int = 1) -> tuple[Any, ...]:
        """Read `count` numbers of a format of `struct`."""
        size = struct.calcsize(f"<{letters}")
        self._check(count * size)
        values = struct.unpack_from(f"<{count}{letters}", self.content, self.at)
        self.at += count * size
        return values

    def number(self, letter: str) -> int:
        value: int = self.numbers(letter)[0]
        return value

    def text(self) -> str:
        length = self.number("Q")
        self._check(length)
        self.at += length
        try:
            return self.content[self.at - length : self.at].decode("utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(
                f"{self.path} holds text that is not UTF-8 at byte {self.at - length}; download it again."
            ) from None

    def value(self, kind: int) -> Any:
        """Read a value of the metadata of the numbered type."""
        if kind in _FORMATS:
            return self.numbers(_FORMATS[kind])[0]
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise UnsupportedModelError(
                f"{self.path} holds metadata of type {kind}, which is not known; update forerun."
            )
        entry, count = self.numbers("I")[0], self.number("Q")
        if entry in _FORMATS:
            return list(self.numbers(_FORMATS[entry], count))
        if entry != _STRING:
            raise UnsupportedModelError(
                f"{self.path} holds a list of metadata of type {entry}, which is not known."
            )
        self._check(8 * count)
        return self._texts(count)

    def _texts(self, count: int) -> list[str]:
        """Read texts, of which a vocabulary has a hundred thousand, without a call for each."""
        content, at, end = self.content, self.at, len(self.content)
        length_at, texts = _LENGTH.unpack_from, []
        for _ in range(count):
            start = at + _LENGTH.size
            at = start + length_at(content, at)[0] if start <= end else start
            if at > end:
                raise cut_off(self.path)
            texts.append(content[start:at])
        self.at = at
        try:
            return [text.decode() for text in texts]
        except UnicodeDecodeError:
            raise CheckpointError(
                f"{self.path} holds text that is not UTF-8 before byte {at}; download it again."
            ) from None

    def _check(self, length: int) -> None:
        if length > len(self.content) - self.at:
            raise cut_off(self.path)


def cut_off(path: Path) -> CheckpointError:
    """The error for a file that is shorter than its header announces."""
    return CheckpointError(f"{path} is cut off or corrupt; download it again.")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Metadata and tensors of one file."""
    if not is_regular(path):
        raise CheckpointError(f"there is no file {path}; give a GGUF file or a hub id.")
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise CheckpointError(f"{path} is not a GGUF file: it does not begin with GGUF.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _parse(_Bytes(path, content))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason(error)}.") from error


def _together(parts: list[Path]) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Metadata of the first part of a split file, and the tensors of all parts."""
    metadata: dict[str, Any] = {}
    tensors: dict[str, StoredTensor] = {}
    for number, part in enumerate(parts):
        keys, added = _read(part)
        metadata = metadata or keys
        if (keys.get("split.no"), keys.get("split.count")) != (number, len(parts)):
            raise CheckpointError(
                f"{part} is not part {number + 1} of {len(parts)} by its own metadata; download it again."
            )
        if twice := tensors.keys() & added:
            raise CheckpointError(
                f"{part} holds {printable(min(twice))} a second time; it is of another model."
            )
        tensors |= added
    announced = metadata.get("split.tensors.count", len(tensors))
    if announced != len(tensors):
        raise CheckpointError(
            f"the parts of {parts[0]} hold {len(tensors)} tensors instead of {shown(announced)}; "
            "they are of different models."
        )
    return metadata, tensors


def _parse(stream: _Bytes) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    stream.at = 4
    version = stream.number("I")
    if version not in VERSIONS:
        swapped = version & 0xFFFF == 0
        raise UnsupportedModelError(
            f"{stream.path} is GGUF of version {version}, and versions 2 and 3 are read; "
            + (
                "it is of the other byte order."
                if swapped
                else "update forerun, or convert it again."
            )
        )
    num_tensors, num_keys = stream.numbers("Q", 2)
    metadata = {}
    for _ in range(num_keys):
        key = stream.text()
        if key in metadata:
            raise CheckpointError(f"{stream.path} says {shown(key)} twice; download it again.")
        metadata[key] = stream.value(stream.number("I"))
    infos = {stream.text(): _tensor_info(stream) for _ in range(num_tensors)}
    if len(infos) != num_tensors:
        raise CheckpointError(f"{stream.path} holds a tensor twice; download it again.")
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 2**20:
        raise CheckpointError(f"{stream.path}: general.alignment is wrong; download it again.")
    begin, length = -(-stream.at // alignment) * alignment, len(stream.content)
    tensors = {}
    for name, (shape, kind, offset) in infos.items():
        tensor = StoredTensor(shape, kind, stream.path, begin + offset)
        if tensor.start + tensor.nbytes > length:
            raise cut_off(stream.path)
        tensors[name] = tensor
    return metadata, tensors


def _tensor_info(stream: _Bytes) -> tuple[tuple[int, ...], GGMLQuantizationType, int]:
    dimensions = stream.number("I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise CheckpointError(f"{stream.path} holds a tensor of {dimensions} dimensions.")
    shape = tuple(reversed(stream.numbers("Q", dimensions)))
    number = stream.number("I")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise UnsupportedModelError(
            f"{stream.path} holds tensors of type {number}, which is not known; "
            "update the package gguf, or take another quantization of the model, such as Q8_0."
        ) from None
    if min(shape) < 1 or shape[-1] % GGML_QUANT_SIZES[kind][0]:
        raise CheckpointError(
            f"{stream.path} holds a tensor of {list(shape)} values in {kind.name}, which cannot be."
        )
    return shape, kind, stream.number("Q")
