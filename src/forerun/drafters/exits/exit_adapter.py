"""An exit adapter: what turns the hidden states after a target's first layers into ones that its own
head can read, so that the first layers alone can draft."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from forerun.contracts import CausalLM, Module, Modules
from forerun.errors import CheckpointError, IncompatibleDraftError, shown
from forerun.files import atomic_path, is_regular, printable
from forerun.models.modules import modules_for

FORMAT = "forerun-exit-adapter"
VERSION = "1"
NORM_EPS = 1e-6
_TENSORS = ("norm", "gate", "up", "down")


def adapt(modules: Modules, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Module:
    """A gated MLP beside the residual: `hidden` [..., h] + down(silu(gate(x)) * up(x)) with x, the
    normed hidden states; `norm` [h], `gate` and `up` [i, h], `down` [h, i]."""
    normed = modules.norm(norm, eps=NORM_EPS)
    gate_up = modules.linear(torch.cat((gate, up)))
    inner = modules.activation("silu", gated=True)
    narrow = modules.linear(down)
    return lambda hidden: hidden + narrow(inner(gate_up(normed(hidden))))


@dataclass(frozen=True)
class ExitAdapter:
    """The weights of one adapter, see `adapt`.

    Args:
        exit_layer: layers below it.
        target: the name of the model that it was trained for.
        norm, gate, up, down: its tensors.
    """

    exit_layer: int
    target: str
    norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor

    def module(self, target: CausalLM) -> Module:
        """What turns hidden states [..., hidden_size] into ones that the target's final norm and head
        can read, on what the target runs on.

        Raises:
            IncompatibleDraftError: for a target of another width.
            CheckpointError: for weights that cannot run there.
        """
        if len(self.norm) != target.hidden_size:
            raise IncompatibleDraftError(
                f"the exit adapter for {self.target} is {len(self.norm)} wide and {target.name} "
                f"is {target.hidden_size}; give an adapter that was trained for this target."
            )
        try:
            return adapt(modules_for(target), self.norm, self.gate, self.up, self.down)
        except CheckpointError as error:
            raise CheckpointError(f"the exit adapter for {self.target}: {error}") from None

    def save(self, path: Path) -> None:
        """Write one safetensors file in bfloat16, atomically; what is not a tensor is its metadata."""
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "exit_layer": str(self.exit_layer),
            "target": self.target,
        }
        tensors = {
            name: getattr(self, name).detach().to("cpu", torch.bfloat16).contiguous()
            for name in _TENSORS
        }
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)

    @classmethod
    def load(cls, path: str | Path) -> ExitAdapter:
        """Read what `save` wrote, onto the CPU.

        Raises:
            CheckpointError: for a path that is not such a file, or one whose tensors do not fit each
                other.
        """
        if not is_regular(path):
            raise CheckpointError(
                f"{printable(path)} is not a file; give the path of an exit adapter."
            )
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata: Mapping[str, str] = file.metadata() or {}
                if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
                    raise CheckpointError(
                        f"{path} is not an exit adapter of version {VERSION}; make one with "
                        "'python -m recipes.exit_adapter' in forerun's repository."
                    )
                tensors = [file.get_tensor(name) for name in _TENSORS]
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}); give the path of an exit adapter."
            ) from error
        exit_layer = metadata.get("exit_layer", "")
        if not re.fullmatch("[1-9][0-9]{0,8}", exit_layer):
            raise CheckpointError(
                f"{path}: exit_layer is {shown(exit_layer)}; it must be a count of 1 or more. "
                "Make the file again."
            )
        width = tensors[0].numel()
        inner = tensors[1].numel() // max(width, 1)
        shapes = [(width,), (inner, width), (inner, width), (width, inner)]
        for name, tensor, shape in zip(_TENSORS, tensors, shapes, strict=True):
            if tensor.shape != shape or not tensor.numel() or not tensor.isfinite().all():
                raise CheckpointError(
                    f"{path} holds a tensor {name!r} of {list(tensor.shape)} that is not made of "
                    f"{list(shape)} finite numbers; make the file again."
                )
        return cls(int(exit_layer), metadata.get("target", "?"), *tensors)
