"""Published tensors, in files or in memory, checked against a layout before any is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from forerun.errors import CheckpointError
from forerun.models.architecture import Architecture
from forerun.models.config import one_line, read_object
from forerun.models.layouts import HEAD, Layout, layout_of

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Rows of two tables that are compared at a time.
_ROWS = 4096


class Source(Protocol):
    """Where published tensors come from."""

    name: str

    def keys(self) -> list[str]:
        """All keys that are there."""

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""

    def read(self, key: str) -> Tensor:
        """The tensor, on the CPU if it comes from a file."""

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """A part of it along one of its first two dimensions; what was read before may be forgotten."""


class TensorSource:
    """Tensors in memory, such as a `state_dict`."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        self.name, self._tensors = name, tensors

    def keys(self) -> list[str]:
        """All keys that are there."""
        return list(self._tensors)

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self._tensors[key].shape)

    def read(self, key: str) -> Tensor:
        """The tensor itself."""
        return self._tensors[key].detach()

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """A part of it, on the CPU."""
        return self.read(key).narrow(dim, start, stop - start).cpu()


class SafetensorsSource:
    """The safetensors files of a directory: one, or several with an index.

    Args:
        directory: of the checkpoint.

    Raises:
        CheckpointError: when files are missing or broken, or only pickled weights are there.
    """

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._files: dict[Path, Any] = {}
        self._where = self._index(directory)

    def _index(self, directory: Path) -> dict[str, Path]:
        if (directory / INDEX).is_file():
            where = _read_index(directory)
            for file in sorted(set(where.values())):
                present = set(self._open(file).keys())
                lost = [key for key, at in where.items() if at == file and key not in present]
                if lost:
                    raise CheckpointError(
                        f"{file} lacks {lost[0]}, which {INDEX} places there; download both again."
                    )
            return where
        if (directory / SINGLE).is_file():
            return dict.fromkeys(self._open(directory / SINGLE).keys(), directory / SINGLE)
        raise CheckpointError(_no_weights(directory))

    def _open(self, file: Path) -> Any:
        if file not in self._files:
            try:
                # The type stubs do not know safe_open as a function.
                self._files[file] = safe_open(str(file), framework="pt", device="cpu")
            except FileNotFoundError:
                raise CheckpointError(
                    f"{file.name} is missing in {file.parent}; {INDEX} names it: download it."
                ) from None
            except (SafetensorError, OSError) as error:
                raise CheckpointError(_broken(file, error)) from error
        return self._files[file]

    def keys(self) -> list[str]:
        """All keys that are there."""
        return list(self._where)

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of a tensor, from the file's header."""
        return tuple(self._open(self._where[key]).get_slice(key).get_shape())

    def read(self, key: str) -> Tensor:
        """The tensor, on the CPU; only its own bytes are read."""
        file = self._where[key]
        try:
            tensor: Tensor = self._open(file).get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(_broken(file, error)) from error
        return tensor

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """A part of it. The file is opened for this alone: as long as it is, all pages that were read
        count as memory of the process."""
        file = self._where[key]
        try:
            with safe_open(str(file), framework="pt", device="cpu") as opened:
                whole = opened.get_slice(key)
                part: Tensor = whole[start:stop] if dim == 0 else whole[:, start:stop]
                return part.clone()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(_broken(file, error)) from error


def has_weights(directory: Path) -> bool:
    """Whether all safetensors files of a checkpoint are there, unopened.

    Raises:
        CheckpointError: for an index that is broken.
    """
    if (directory / INDEX).is_file():
        return all(file.is_file() for file in set(_read_index(directory).values()))
    return (directory / SINGLE).is_file()


def _read_index(directory: Path) -> dict[str, Path]:
    """The file of each key."""
    weight_map = read_object(directory / INDEX).get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else [None]
    if not all(_is_file_name(name) for name in names):
        raise CheckpointError(
            f"{directory / INDEX} has no weight_map of files beside it; download it again."
        )
    assert isinstance(weight_map, dict), "checked above"
    return {key: directory / name for key, name in weight_map.items()}


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def with_own_head(shape: Architecture, source: Source) -> Architecture:
    """The shape with an output head of its own where the config says that it is the embedding and
    the weights disagree: what is stored counts, as in transformers.

    Raises:
        CheckpointError: for files that cannot be read.
    """
    if not shape.tied:
        return shape
    layout, keys = layout_of(shape), source.keys()
    embeddings = [key for key in keys if layout.key(key) == layout.embedding]
    if HEAD not in keys or not embeddings or _equal(source, HEAD, embeddings[0]):
        return shape
    return replace(shape, tied=False)


def _equal(source: Source, first: str, second: str) -> bool:
    shape = source.shape(first)
    if shape != source.shape(second):
        return False
    for start in range(0, shape[0], _ROWS):
        stop = min(start + _ROWS, shape[0])
        parts = (source.slice(key, 0, start, stop).double() for key in (first, second))
        if not torch.equal(*parts):
            return False
    return True


def _broken(file: Path, error: Exception) -> str:
    return f"{file} is corrupt or cut off ({one_line(error)}); download it again."


def _no_weights(directory: Path) -> str:
    pickled = sorted(p.name for end in ("*.bin", "*.pt", "*.pth") for p in directory.glob(end))
    if pickled:
        return (
            f"{directory} holds only pickled weights ({pickled[0]}), which can run code when read; "
            "save the model again with transformers' save_pretrained, which writes safetensors."
        )
    return f"{directory} holds no weights; it must have {SINGLE} or {INDEX} with its files."


def read_weights(
    source: Source, layout: Layout, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Our tensors by name, from published ones that are all checked before any is read.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors, naming the first.
    """
    keys, weights = match_keys(source, layout), {}
    for tensor in layout.tensors:
        # Filled part by part, so that no tensor exists twice for long.
        ours = torch.empty(tensor.shape, dtype=dtype, device=device)
        rows = [part.rows for part in tensor.parts]
        for part, target in zip(tensor.parts, torch.split(ours, rows), strict=True):
            theirs = source.read(keys[part.key])
            target.copy_(theirs.t() if part.transposed else theirs)
        weights[tensor.name] = ours
    return weights


def match_keys(source: Source, layout: Layout) -> dict[str, str]:
    """The source's keys by published key, after all of them and their shapes have been checked.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors, naming the first.
    """
    expected = layout.published
    stored = {layout.key(key): key for key in source.keys()}  # noqa: SIM118, a source is no mapping
    missing = [key for key in expected if key not in stored]
    if missing:
        raise CheckpointError(
            f"{source.name} lacks {missing[0]} of shape {list(expected[missing[0]])}"
            f"{_more(missing)}; the checkpoint is incomplete or config.json is of another model."
        )
    unexpected = [
        key
        for published, key in stored.items()
        if published not in expected and not layout.ignored.fullmatch(key)
    ]
    if unexpected:
        raise CheckpointError(
            f"{source.name} holds {unexpected[0]}{_more(unexpected)}, which config.json has no "
            "place for; config and weights are not of one model."
        )
    for published, shape in expected.items():
        if source.shape(stored[published]) != shape:
            raise CheckpointError(
                f"{source.name}: {stored[published]} has shape "
                f"{list(source.shape(stored[published]))}, but config.json asks for {list(shape)}; "
                "config and weights are not of one model."
            )
    return {published: stored[published] for published in expected}


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
