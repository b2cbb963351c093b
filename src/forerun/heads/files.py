"""A head's directory: its config and tensors, read in every published form, and written atomically."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import CheckpointError, IncompatibleDraftError, UnsupportedModelError, shown
from forerun.files import atomic_path, is_regular, printable, reason
from forerun.heads import CONFIG, kind_of
from forerun.interrupts import never_lost
from forerun.models.config import one_line, read_object
from forerun.models.hub import Location, locate
from forerun.models.sources import INDEX, SINGLE, SafetensorsSource

OWN = "forerun.json"
"""Name of the optional file that forerun adds to a published layout: recipe, target, figures."""
BY_RANK = "acceptance_by_rank"
"""Key in `forerun.json` of acceptance by depth and rank, for the shapes of sampled trees."""
CARD = "README.md"
SCALES = "_scale"
"""Suffix of the names of scales, one per row and group of columns of a matrix in 8 or 4 bits."""
ZERO = 8
"""Code of 0 in 4 bits."""
# Other file names of a whole head; the first that exists is read.
_WHOLE = ("pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt")
_BY_RANK = TypeAdapter(tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...])
_PATTERNS = ("*.safetensors", "*.bin", "medusa_lm_head.pt")


@dataclass(frozen=True, eq=False)
class HeadFiles:
    """A stored head, in its published layout; each part is read at its first use.

    Attributes:
        name: the name that the user gave.
        location: place of its files.
        config: content of its config.json.
        kind: kind of head, a key of `forerun.heads.HEADS`; None if the config does not tell.
    """

    name: str
    location: Location
    config: Mapping[str, Any]

    @classmethod
    @never_lost()
    def open(cls, name: str | os.PathLike[str], revision: str | None = None) -> HeadFiles:
        """Find a head and read its config, but none of its weights.

        Args:
            name: a directory or a hub id.
            revision: branch, tag or commit on the hub.

        Raises:
            CheckpointError: for a missing or broken directory or config.
            ConfigError: for the revision of a directory.
        """
        location = locate(name, revision)
        if location.file is not None:
            raise CheckpointError(
                f"{printable(name)} is a file; a head is a directory with {CONFIG} and weights."
            )
        return cls(os.fspath(name), location, read_object(location.directory / CONFIG))

    @property
    def kind(self) -> str | None:
        return kind_of(self.config)

    @property
    def directory(self) -> Path:
        return self.location.directory

    @cached_property
    def own(self) -> Mapping[str, Any]:
        """Content of the file that forerun adds to the published layout; empty for a head of other tools.

        Raises:
            CheckpointError: for a broken file.
        """
        path = self.directory / OWN
        return read_object(path) if path.exists() else {}

    @property
    def acceptance_by_rank(self) -> tuple[tuple[float, ...], ...] | None:
        """Acceptance of the head's tokens by depth and rank, measured at its training, from `forerun.json`.

        None if the file does not have it.

        Raises:
            CheckpointError: for anything but probabilities.
        """
        table = self.own.get(BY_RANK)
        if table is None:
            return None
        try:
            lines = _BY_RANK.validate_python(table)
        except ValidationError:
            lines = ()
        if len(set(map(len, lines))) != 1 or not lines[0]:
            raise CheckpointError(
                f"{self.name}: {BY_RANK} of {OWN} is {shown(table)}; it must hold lines of as many numbers "
                "from 0 to 1, one line for each depth. Leave it out, or train the head again."
            )
        return lines

    @cached_property
    @never_lost()
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors of the head, by published name, on the CPU; nothing in the files is run as code.

        Raises:
            CheckpointError: for weights that are missing, corrupt, or not finite.
        """
        directory = self._weights
        tensors = _dequantized(directory, _read(directory))
        for key, tensor in tensors.items():
            _check_numbers(directory, key, tensor)
        return tensors

    @cached_property
    def names(self) -> frozenset[str]:
        """Published names of the head's tensors; nothing else is read from safetensors.

        Raises:
            CheckpointError: for weights that are missing or corrupt.
        """
        if _is_safe(self._weights):
            names = SafetensorsSource(self._weights).shapes
            return frozenset(name for name in names if not name.endswith(SCALES))
        return frozenset(self.tensors)

    @property
    def in_few_bits(self) -> bool:
        """True if matrices are stored as codes with scales, which no other engine reads.

        Raises:
            CheckpointError: for weights that are missing or corrupt.
        """
        names = SafetensorsSource(self._weights).shapes if _is_safe(self._weights) else ()
        return any(name.endswith(SCALES) for name in names)

    @cached_property
    def _weights(self) -> Path:
        """Directory of the weights, which are downloaded now if they are on the hub."""
        return self.location.with_weights(_PATTERNS).directory

    @property
    def weight_bytes(self) -> int:
        """Bytes of the head's stored weights, as far as they are on this machine."""
        suffixes = {".safetensors", ".bin", ".pt"}
        files = (path for path in self.directory.iterdir() if path.suffix in suffixes)
        return sum(path.stat().st_size for path in files if path.is_file())

    def require(self, kind: str) -> None:
        """Refuse the head of another method; a config that does not name its method passes.

        Raises:
            UnsupportedModelError: naming the method that it belongs to.
        """
        if self.kind not in (None, kind):
            raise UnsupportedModelError(
                f"{self.name} is a head of method {self.kind!r}; use that method instead of {kind!r}."
            )

    def pick(
        self,
        required: Mapping[str, tuple[int, ...]],
        optional: Mapping[str, tuple[int, ...]] | None = None,
        unused: Collection[str] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> dict[str, Tensor]:
        """The tensors of a layout, after all names and shapes have been checked.

        Args:
            required: shapes by published name.
            optional: shapes of tensors that a head may lack.
            unused: names that are allowed and not read.
            renamed: published names of tensors that are stored under another.

        Raises:
            CheckpointError: for a tensor that is missing, misshapen, or not of this layout.
        """
        names = renamed or {}
        stored = {names.get(key, key): tensor for key, tensor in self.tensors.items()}
        shapes = {key: tuple(tensor.shape) for key, tensor in stored.items()}
        for _, flaw in flaws(shapes, required, optional or {}, unused):
            raise CheckpointError(
                f"{self.name} {flaw}; it is incomplete, of another kind, or has the config of another head."
            )
        return {key: stored[key] for key in (*required, *(optional or ())) if key in stored}


def flaws(
    stored: Mapping[str, tuple[int, ...]],
    required: Mapping[str, tuple[int, ...]],
    optional: Mapping[str, tuple[int, ...]],
    unused: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Tensors that are missing, misshapen or not of a layout: the kind of each flaw, and what it is.

    Args:
        stored, required, optional: shapes by published name.
        unused: names that are allowed and not read.
    """
    wanted = {**required, **optional}
    for key, shape in wanted.items():
        if key not in stored and key in required:
            yield "missing_tensor", f"lacks {key} of shape {list(shape)}"
        elif stored.get(key, shape) != shape:
            text = (
                f"has {key} of shape {list(stored[key])}, and its {CONFIG} asks for {list(shape)}"
            )
            yield "shape", text
    for key in sorted(stored.keys() - wanted.keys() - set(unused)):
        yield "unused_tensor", f"holds {printable(key)}, which its {CONFIG} does not describe"


def open_head(name: str | os.PathLike[str], kind: str, revision: str | None = None) -> HeadFiles:
    """Open the head that a user named and check its kind.

    Raises:
        CheckpointError: for a missing or broken directory or config.
        UnsupportedModelError: for a head of another kind.
    """
    files = HeadFiles.open(name, revision)
    files.require(kind)
    return files


def refuse_other_target(
    name: str,
    target: CausalLM,
    *,
    hidden_size: int,
    vocab_size: int | None = None,
) -> None:
    """Refuse a head that was trained for another target than the one that it is to draft for.

    Args:
        name: name of the head, for messages.
        target: the target to draft for.
        hidden_size: hidden size of the target that it was trained for.
        vocab_size: size of its vocabulary, if the head states it.

    Raises:
        IncompatibleDraftError: with both numbers.
    """
    pairs = (
        ("hidden size", hidden_size, target.hidden_size),
        ("vocabulary", vocab_size, target.vocab_size),
    )
    for what, ours, theirs in pairs:
        if ours is not None and ours != theirs:
            raise IncompatibleDraftError(
                f"{name} was trained for a target with a {what} of {ours}, and {target.name} has "
                f"{theirs}; give a head that was trained for {target.name}."
            )


def write_head(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    texts: Mapping[str, str | bytes] | None = None,
) -> None:
    """Write a head's directory; all files are complete before the first is replaced.

    Args:
        directory: the directory.
        config: config of a published layout.
        tensors: tensors by published name, saved in their dtypes.
        texts: further files by name, such as `forerun.json` and `README.md`.

    Raises:
        CheckpointError: if it cannot be written; existing files stay.
    """
    contents = {CONFIG: json.dumps(config, indent=2) + "\n", **(texts or {})}
    stored = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    try:
        with contextlib.ExitStack() as finished:
            for name, text in contents.items():
                content = text if isinstance(text, bytes) else text.encode()
                finished.enter_context(atomic_path(directory / name)).write_bytes(content)
            save_file(
                stored, finished.enter_context(atomic_path(directory / SINGLE)), {"format": "pt"}
            )
    except (OSError, SafetensorError) as error:
        why = reason(error) if isinstance(error, OSError) else one_line(error)
        raise CheckpointError(
            f"{printable(directory)} cannot be written: {why}; give a directory on a disk with "
            "room."
        ) from error


def _is_safe(directory: Path) -> bool:
    """True if a directory holds safetensors."""
    return (directory / SINGLE).is_file() or (directory / INDEX).is_file()


def _read(directory: Path) -> dict[str, Tensor]:
    """The tensors of a directory, from whichever files hold them."""
    if _is_safe(directory):
        source = SafetensorsSource(directory)
        return {key: source.read(key) for key in source.shapes}
    files = [directory / name for name in _WHOLE if is_regular(directory / name)][:1]
    if not files:
        raise CheckpointError(
            f"{directory} holds no weights; a head has {SINGLE}, {' or '.join(_WHOLE)} beside its "
            f"{CONFIG}."
        )
    return _safe(files[0]) if files[0].suffix == ".safetensors" else _unpickled(files[0])


def _dequantized(directory: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with matrices in 8 and 4 bits converted to bf16; scales are removed.

    Codes in 8 bits are int8; in 4 bits two share a uint8, the first in the lower half.
    """
    for name in [name for name in tensors if name.endswith(SCALES)]:
        key, scales = name.removesuffix(SCALES), tensors.pop(name)
        codes = tensors.get(key)
        if codes is not None and codes.dtype == torch.uint8 and codes.dim() == 2:
            codes = torch.stack((codes & 15, codes >> 4), -1).flatten(1).to(torch.int8) - ZERO
        fits = codes is not None and codes.dtype == torch.int8 and codes.dim() == scales.dim() == 2
        if codes is None or not fits or codes.shape[0] != scales.shape[0] or not scales.numel():
            raise CheckpointError(f"{directory}: {printable(name)} fits no matrix in 8 or 4 bits.")
        if codes.shape[1] % scales.shape[1]:
            raise CheckpointError(
                f"{directory}: {printable(name)} does not divide {printable(key)}."
            )
        groups = codes.float().reshape(*scales.shape, -1)
        tensors[key] = (groups * scales.float()[..., None]).flatten(1).bfloat16()
    return tensors


def _safe(file: Path) -> dict[str, Tensor]:
    """The tensors of a file of safetensors."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        text = f"{file} is corrupt or cut off ({one_line(error)}); download it again."
        raise CheckpointError(text) from error


def _unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a file of torch; nothing but tensors is unpickled."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{file} is corrupt or holds more than tensors ({one_line(error)}); download it again, or "
            "give a head in safetensors."
        ) from error
    tensors = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise CheckpointError(f"{file} is not a mapping of names to tensors; download it again.")
    return {str(key): tensor for key, tensor in tensors.items()}


def _check_numbers(directory: Path, key: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        return
    if tensor.dtype.itemsize < 2:
        raise CheckpointError(
            f"{directory} holds {printable(key)} in {tensor.dtype}; give a head in fp32, bf16 or fp16."
        )
    if not bool(tensor.isfinite().all()):
        raise CheckpointError(
            f"{directory} holds {printable(key)} with numbers that are NaN or infinite; make or "
            "download it again."
        )
