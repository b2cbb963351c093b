"""A device that is none: tensors on it are computed on the CPU, and refused beside the CPU's own.

What a GPU refuses (an operation over tensors of two devices, the memory of a tensor read by NumPy) fails
here too, so that code which has never met a GPU is checked for it everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

PRETEND = torch.device("meta")
"""The device; torch gives its name to tensors without numbers, of which there are none otherwise."""
_aten = torch.ops.aten
# They move numbers between devices.
_MOVES = {_aten._to_copy.default, _aten.copy_.default}
# The indices of a tensor on a device may lie on the CPU.
_INDEXES = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_INDEXES |= {_aten._index_put_impl_.default, _aten._unsafe_index.Tensor}


class Remote(Tensor):
    """A tensor on the pretended device."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Remote:
        made: Any = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=PRETEND,
        )
        made.numbers = inner
        remote: Remote = made
        return remote

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Remote({self.numbers!r})"

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_without_lists(index), value)

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor on a device is no array; call cpu() first")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own stub leaves the function out
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _without_lists(index: Any) -> Any:
    """An index whose lists are tensors: torch would put them on the device, without their numbers."""
    parts = index if isinstance(index, tuple) else (index,)
    made = tuple(
        torch.tensor(part, dtype=None if part else torch.long) if isinstance(part, list) else part
        for part in parts
    )
    return made if isinstance(index, tuple) else made[0]


class _Mode(TorchDispatchMode):
    """Sees what is made on the device without any tensor of it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device while the block runs; autocast, which does not know it, does nothing there."""
    autocast, tensor = torch.autocast, torch.tensor

    def known(kind: str, *args: Any, **kwargs: Any) -> Any:
        return nullcontext() if kind == PRETEND.type else autocast(kind, *args, **kwargs)

    def filled(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        # Of this device torch makes tensors without numbers.
        made = tensor(data, *args, **kwargs)
        return made if device is None else made.to(device)

    with monkeypatch.context() as patch, _Mode():
        patch.setattr(torch, "autocast", known)
        patch.setattr(torch, "tensor", filled)
        yield PRETEND


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is _aten._fused_sdp_choice.default:
        return 0  # Plain operations, which any device has.
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    remote = any(isinstance(leaf, Remote) for leaf in leaves)
    if remote and func not in _MOVES:
        _refuse_mixture(func, args, leaves)
    device = kwargs.get("device")
    there = remote if device is None else torch.device(device).type == PRETEND.type
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner_args, inner_kwargs = tree_map_only(Remote, lambda leaf: leaf.numbers, (args, kwargs))
    if func is _aten._to_copy.default and there != remote:
        # Another device has memory of its own.
        inner_args = (inner_args[0].clone(), *inner_args[1:])
    made = func(*inner_args, **inner_kwargs)
    if func is _aten.copy_.default:
        there = isinstance(args[0], Remote)
    if not there:
        return made
    wrapped = tree_map_only(Tensor, Remote, made)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if remote else wrapped


def _refuse_mixture(func: Any, args: Any, leaves: list[Tensor]) -> None:
    """Raise for operands of two devices, as a GPU does."""
    if func in _INDEXES and isinstance(args[0], Remote):
        leaves = [leaf for leaf in tree_leaves(args[2:]) if isinstance(leaf, Tensor)]
    strange = [leaf for leaf in leaves if not isinstance(leaf, Remote) and leaf.dim() > 0]
    if strange:
        raise RuntimeError(f"{func}: an operand of shape {list(strange[0].shape)} is on the CPU")
