"""A session as a file: safetensors with the keys and values of one row, layer by layer.

Neither writing nor reading holds more than one layer in memory beside the cache.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from forerun.contracts import SavesRows
from forerun.errors import SessionError, shown
from forerun.files import atomic_path, is_regular, printable, reason
from forerun.interrupts import never_lost

FORMAT, VERSION = "forerun session", "1"
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
}
# Keys of the metadata that are not facts about the model.
_OWN = ("format", "version", "notes")

Spec = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class Session:
    """A text whose keys and values are in a file.

    Args:
        token_ids: tokens of the text; of a prompt that begins with them only the rest is run.
        nbytes: bytes of the file.
        notes: texts that were saved with it.
    """

    token_ids: tuple[int, ...]
    nbytes: int
    notes: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Session({len(self.token_ids)} tokens, {self.nbytes} bytes)"


@dataclass(frozen=True)
class Contents:
    """Content of a file beside keys and values.

    Args:
        token_ids: tokens of the text.
        probe: logits by which the weights are recognized, float32 [k].
        facts: facts about the model and its cache, by name.
        notes: the user's notes.
    """

    token_ids: tuple[int, ...]
    probe: Tensor
    facts: Mapping[str, str]
    notes: Mapping[str, str]


def write_session(
    path: str | os.PathLike[str], contents: Contents, cache: SavesRows, row: int
) -> Session:
    """Write the first tokens of a row, atomically.

    Raises:
        SessionError: if the file cannot be written.
    """
    first = [torch.tensor(contents.token_ids), contents.probe]
    sums: list[int] = []
    metadata = {
        **contents.facts,
        "format": FORMAT,
        "version": VERSION,
        "notes": json.dumps(dict(contents.notes)),
    }
    layout = _layout(cache, len(contents.token_ids), len(contents.probe))
    try:
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            file.write(_header(layout, metadata))
            for tensor in chain(first, _layers(cache, row, len(contents.token_ids))):
                data = _bytes(tensor)
                sums.append(zlib.crc32(data))
                file.write(data)
            file.write(_bytes(torch.tensor(sums)))
        nbytes = Path(path).stat().st_size
    except OSError as error:
        raise SessionError(
            f"session {printable(path)} cannot be written: {reason(error)}."
        ) from error
    return Session(contents.token_ids, nbytes, contents.notes)


class SessionFile:
    """An open session file.

    Raises:
        SessionError: for a file that cannot be read or is not a session of this version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = f"session {printable(path)}"
        if not is_regular(path):
            raise SessionError(
                f"{self.name} is not a file; give one that sessions.save has written."
            )
        with self._reading():
            self.nbytes = Path(path).stat().st_size
            file: Any = safe_open(os.fspath(path), framework="pt")
            metadata: dict[str, str] = dict(file.metadata() or {})
            self._keys = set(file.keys())
        self._file = file
        if metadata.get("format") != FORMAT:
            raise SessionError(
                f"{self.name} is a safetensors file but not a session; give one that sessions.save has "
                "written."
            )
        if metadata.get("version") != VERSION:
            raise SessionError(
                f"{self.name} has version {shown(metadata.get('version'))} of the format and this forerun "
                f"reads {VERSION}; read the text again and save it."
            )
        self.contents = self._contents(metadata)

    @property
    def session(self) -> Session:
        """The session as shown to the user."""
        return Session(self.contents.token_ids, self.nbytes, self.contents.notes)

    def check(self, cache: SavesRows) -> None:
        """Check that all tensors are complete and fit a cache with the same `row_format`.

        Raises:
            SessionError: naming the first that does not.
        """
        length, probes = len(self.contents.token_ids), len(self.contents.probe)
        layout = _layout(cache, length, probes)
        if self._keys != set(layout):
            raise self._damaged(f"it holds {len(self._keys)} tensors instead of {len(layout)}")
        for key, (dtype, shape) in layout.items():
            with self._reading():
                part = self._file.get_slice(key)
                stored = (part.get_dtype(), tuple(part.get_shape()))
            if stored != (_CODES[dtype], shape):
                wanted = f"{_CODES[dtype]} {list(shape)}"
                raise self._damaged(f"{key} is {stored[0]} {list(stored[1])} instead of {wanted}")
        *keys, last = layout
        for key, wanted_sum in zip(keys, self._read(last).tolist(), strict=True):
            if zlib.crc32(_bytes(self._read(key))) != wanted_sum:
                raise self._damaged(f"the sum of {key} is another than when it was written")

    def read_into(self, cache: SavesRows, row: int) -> None:
        """Read keys and values into a row; `check` must have passed."""
        length = len(self.contents.token_ids)
        for layer in range(int(cache.row_format["layers"])):
            names = cache.row_shapes(length)
            tensors = {name: self._read(_key(layer, name)) for name in names}
            cache.write_row(row, layer, length, tensors)

    def _contents(self, metadata: dict[str, str]) -> Contents:
        missing = {"token_ids", "probe"} - self._keys
        if missing:
            raise self._damaged(f"it has no {' and no '.join(sorted(missing))}")
        token_ids, probe = self._read("token_ids"), self._read("probe")
        if token_ids.dtype != torch.int64 or token_ids.dim() != 1 or not len(token_ids):
            raise self._damaged(f"its token ids are {token_ids.dtype} {list(token_ids.shape)}")
        if probe.dtype != torch.float32 or probe.dim() != 1 or not len(probe):
            raise self._damaged(f"its probe is {probe.dtype} {list(probe.shape)}")
        with self._reading():
            notes = json.loads(metadata.get("notes", "{}"))
            if not isinstance(notes, dict):
                raise ValueError("its notes are not an object")
        facts = {name: value for name, value in metadata.items() if name not in _OWN}
        return Contents(tuple(token_ids.tolist()), probe.clone(), facts, notes)

    def _read(self, key: str) -> Tensor:
        with self._reading():
            tensor: Tensor = self._file.get_tensor(key)
        return tensor

    def _damaged(self, how: str) -> SessionError:
        return SessionError(f"{self.name} is damaged: {how}; read the text again and save it.")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with never_lost():
                yield
        except OSError as error:
            raise SessionError(f"{self.name} cannot be read: {reason(error)}.") from error
        except (SafetensorError, ValueError) as error:
            text = " ".join(str(error).split())
            raise SessionError(
                f"{self.name} is cut off or not a session ({text}); read the text again and save it."
            ) from error


def _key(layer: int, name: str) -> str:
    return f"layers.{layer}.{name}"


def _layout(cache: SavesRows, length: int, probes: int) -> dict[str, Spec]:
    """All tensors of a file, in their order."""
    shapes = cache.row_shapes(length)
    layers = range(int(cache.row_format["layers"]))
    layout: dict[str, Spec] = {
        "token_ids": (torch.int64, (length,)),
        "probe": (torch.float32, (probes,)),
        **{_key(layer, name): spec for layer in layers for name, spec in shapes.items()},
    }
    return {**layout, "checksums": (torch.int64, (len(layout),))}


def _layers(cache: SavesRows, row: int, length: int) -> Iterator[Tensor]:
    for layer in range(int(cache.row_format["layers"])):
        yield from cache.read_row(row, layer, length).values()


def _header(layout: Mapping[str, Spec], metadata: Mapping[str, str]) -> bytes:
    """The header of a safetensors file; the library itself can only write whole files from memory."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for key, (dtype, shape) in layout.items():
        end = start + torch.Size(shape).numel() * dtype.itemsize
        entries[key] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> Any:
    """A buffer of the tensor's bytes, without a copy if it is contiguous."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy()
