"""Sources of published tensors, in files or in memory, checked against a layout before any is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from forerun.errors import CheckpointError
from forerun.files import printable
from forerun.models.architecture import Architecture
from forerun.models.config import one_line, read_object
from forerun.models.layouts import HEAD, Fused, Layout, layout_of
from forerun.progress import report

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Number of rows of two tables that are compared at a time.
_ROWS = 4096


class Source(Protocol):
    """A source of published tensors."""

    name: str

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all tensors by key."""

    def read(self, key: str) -> Tensor:
        """Read a tensor; onto the CPU if it comes from a file."""

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """Read a part of a tensor along one of its first two dimensions."""


class CodedSource(Source, Protocol):
    """A source of weights that are already quantized, in groups of 32 columns."""

    def formats(self, layout: Layout) -> Mapping[str, str]:
        """The precision of each stored matrix of a decoder on the kernels, by its published key."""

    def codes(self, key: str, start: int, stop: int) -> Any:
        """Rows [start, stop) of a matrix that the kernels hold quantized.

        They are uint8 `codes` [rows, cols], fp16 `scales` and optional `offsets` [rows, cols / 32].
        """


class TensorSource:
    """Tensors in memory, such as a `state_dict`."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        self.name, self._tensors = name, tensors
        self.shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}

    def read(self, key: str) -> Tensor:
        """Return a tensor, without a copy."""
        return self._tensors[key].detach()

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """Return a part of a tensor, on the CPU."""
        return self.read(key).narrow(dim, start, stop - start).cpu()


class SafetensorsSource:
    """The safetensors files of a directory: one, or several with an index.

    Args:
        directory: directory of the checkpoint.

    Raises:
        CheckpointError: if files are missing or broken, or only pickled weights are there.
    """

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self.shapes: dict[str, tuple[int, ...]] = {}
        indexed = (directory / INDEX).is_file()
        if not indexed and not (directory / SINGLE).is_file():
            raise CheckpointError(_no_weights(directory))
        self._files = _read_index(directory) if indexed else {}
        for file in sorted(set(self._files.values())) or [directory / SINGLE]:
            with _opened(file) as tensors:
                shapes = {
                    key: tuple(tensors.get_slice(key).get_shape())
                    for key in tensors.keys()  # noqa: SIM118, it is not a mapping
                }
            if not indexed:
                self._files = dict.fromkeys(shapes, file)
            for key in (key for key, its_file in self._files.items() if its_file == file):
                if key not in shapes:
                    raise CheckpointError(
                        f"{file} lacks {key}, which {INDEX} says it holds; download both again."
                    )
                self.shapes[key] = shapes[key]

    def read(self, key: str) -> Tensor:
        """Read a tensor onto the CPU; no other bytes are read."""
        with _opened(self._files[key]) as tensors:
            tensor: Tensor = tensors.get_tensor(key)
        return tensor

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """Read a part of a tensor."""
        with _opened(self._files[key]) as tensors:
            whole = tensors.get_slice(key)
            part: Tensor = whole[start:stop] if dim == 0 else whole[:, start:stop]
            return part.clone()


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a file for one use: while it is open, all pages read count as memory of the process."""
    try:
        with safe_open(str(file), framework="pt", device="cpu") as tensors:
            yield tensors
    except FileNotFoundError:
        raise CheckpointError(
            f"{file.name} is missing in {file.parent}; {INDEX} names it: download it."
        ) from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} is corrupt or cut off ({one_line(error)}); download it again."
        ) from error


def has_weights(directory: Path) -> bool:
    """True if all safetensors files of a checkpoint exist; they are not opened.

    Raises:
        CheckpointError: for an index that is broken.
    """
    if (directory / INDEX).is_file():
        return all(file.is_file() for file in set(_read_index(directory).values()))
    return (directory / SINGLE).is_file()


def _read_index(directory: Path) -> dict[str, Path]:
    """The file of each key."""
    weight_map = read_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(map(_is_file_name, weight_map.values())):
        raise CheckpointError(
            f"{directory / INDEX} has no weight_map of files beside it; download it again."
        )
    return {key: directory / name for key, name in weight_map.items()}


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def with_own_head(shape: Architecture, source: Source) -> Architecture:
    """The architecture, untied if the weights hold an output head that differs from the embedding.

    As in transformers, the stored weights decide, even if the config ties the two.

    Raises:
        CheckpointError: for files that cannot be read.
    """
    if not shape.tied:
        return shape
    layout, keys = layout_of(shape), source.shapes
    embeddings = [key for key in keys if layout.key(key) == layout.embedding]
    if HEAD not in keys or not embeddings or _equal(source, HEAD, embeddings[0]):
        return shape
    return replace(shape, tied=False)


def _equal(source: Source, first: str, second: str) -> bool:
    shape = source.shapes[first]
    if shape != source.shapes[second]:
        return False
    for start in range(0, shape[0], _ROWS):
        stop = min(start + _ROWS, shape[0])
        parts = (source.slice(key, 0, start, stop).double() for key in (first, second))
        if not torch.equal(*parts):
            return False
    return True


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
    """Read the decoder's tensors by name; all published ones are checked before any is read.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors, naming the first.
    """
    keys, weights = match_keys(source, layout), {}
    for tensor in loading(layout.tensors, Path(source.name).name):
        # Filled part by part, so that no tensor is in memory twice for long.
        # The sum with an offset stays in at least 32 bits: near 1, 16 bits would lose most of the weight.
        wide = torch.promote_types(dtype, torch.float32) if tensor.offset else dtype
        ours = torch.empty(tensor.shape, dtype=wide, device=device)
        rows = [part.rows for part in tensor.parts]
        for part, target in zip(tensor.parts, torch.split(ours, rows), strict=True):
            theirs = source.read(keys[part.key])
            target.copy_(theirs.t() if part.transposed else theirs)
        if tensor.offset:
            ours += tensor.offset
        weights[tensor.name] = ours
    return weights


def loading(tensors: Sequence[Fused], name: str) -> Iterator[Fused]:
    """The tensors of a model one by one; each is reported as loaded when the next is requested.

    Args:
        tensors: the tensors.
        name: name of the model in reports.
    """
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    done = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        yield tensor
        done += size
        report(f"loading {name}", done, sum(sizes))


def match_keys(source: Source, layout: Layout) -> dict[str, str]:
    """The source's keys by published key, after all keys and shapes have been checked.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors, naming the first.
    """
    expected = layout.published
    stored = {layout.key(key): key for key in source.shapes}
    missing = [key for key in expected if key not in stored]
    if missing:
        raise CheckpointError(
            f"{source.name} lacks {missing[0]} of shape {list(expected[missing[0]])}"
            f"{_more(missing)}; the checkpoint is incomplete or its config is of another model."
        )
    unexpected = [
        key
        for published, key in stored.items()
        if published not in expected and not layout.ignored.fullmatch(key)
    ]
    if unexpected:
        raise CheckpointError(
            f"{source.name} holds {printable(unexpected[0])}{_more(unexpected)}, which its config does "
            "not describe; config and weights are of different models."
        )
    for published, shape in expected.items():
        key = stored[published]
        if source.shapes[key] != shape:
            raise CheckpointError(
                f"{source.name}: {key} has shape {list(source.shapes[key])}, but its config asks "
                f"for {list(shape)}; config and weights are of different models."
            )
    return {published: stored[published] for published in expected}


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
