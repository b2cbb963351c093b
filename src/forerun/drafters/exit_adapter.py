"""An exit adapter: what turns the hidden states after a target's first layers into ones that its own
head can read, so that the first layers alone can draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from forerun.contracts import CausalLM
from forerun.errors import CheckpointError, IncompatibleDraftError
from forerun.files import atomic_path
from forerun.models.cpu import CpuModel, GatedMlp

FORMAT = "forerun-exit-adapter"
VERSION = "1"
NORM_EPS = 1e-6
_TENSORS = ("norm", "gate", "up", "down")


def adapt(hidden: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A gated MLP beside the residual: `hidden` [..., h] + down(silu(gate(x)) * up(x)) with x, the
    normed hidden states; `norm` [h], `gate` and `up` [i, h], `down` [h, i]."""
    normed = functional.rms_norm(hidden, norm.shape, norm, NORM_EPS)
    inner = functional.silu(functional.linear(normed, gate)) * functional.linear(normed, up)
    return hidden + functional.linear(inner, down)


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

    @property
    def hidden_size(self) -> int:
        return len(self.norm)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., hidden_size] that the target's final norm and head can read."""
        return adapt(hidden, self.norm, self.gate, self.up, self.down)

    def fit(self, target: CausalLM) -> ExitAdapter:
        """The same on the target's device, in the dtype of its hidden states.

        Raises:
            IncompatibleDraftError: for a target of another width, or one that has no layers left
                above the exit.
        """
        if self.hidden_size != target.hidden_size:
            raise IncompatibleDraftError(
                f"the exit adapter for {self.target} is {self.hidden_size} wide and {target.name} "
                f"is {target.hidden_size}; give an adapter that was trained for this target."
            )
        if self.exit_layer >= target.num_layers:
            raise IncompatibleDraftError(
                f"the exit adapter for {self.target} stands after layer {self.exit_layer} and "
                f"{target.name} has {target.num_layers}; give one of an exit below its last layer."
            )
        tensors = {
            name: getattr(self, name).to(target.device, target.dtype).contiguous()
            for name in _TENSORS
        }
        return ExitAdapter(self.exit_layer, self.target, **tensors)

    def reader(self, target: CausalLM) -> Callable[[Tensor], Tensor]:
        """The same as `__call__`, on what the target runs on.

        Raises:
            IncompatibleDraftError: as `fit`.
            CheckpointError: for weights that are no numbers.
        """
        fitting = self.fit(target)
        if not isinstance(target, CpuModel):
            return fitting
        # As with the head, int4 would cost more of the draft's aim than it saves time.
        precision = "int8" if target.precision == "int4" else target.precision
        tensors = (self.norm, self.gate, self.up, self.down)
        try:
            return GatedMlp(*tensors, NORM_EPS, precision)
        except ValueError as error:
            raise CheckpointError(
                f"the exit adapter for {self.target} cannot run on the CPU kernels: {error}."
            ) from None

    def save(self, path: Path) -> None:
        """Write one safetensors file in bfloat16, atomically; what is not a tensor is its metadata."""
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "exit_layer": str(self.exit_layer),
            "hidden_size": str(self.hidden_size),
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
            CheckpointError: for a path that is no such file, or one whose tensors do not fit each
                other.
        """
        if not Path(path).is_file():
            raise CheckpointError(f"{path} is no file; give the path of an exit adapter.")
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata: Mapping[str, str] = file.metadata() or {}
                names = set(file.keys())
                tensors = {name: file.get_tensor(name) for name in _TENSORS if name in names}
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} is no safetensors file ({error}); give the path of an exit adapter."
            ) from error
        return cls._of(path, metadata, tensors)

    @classmethod
    def _of(
        cls, path: str | Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]
    ) -> ExitAdapter:
        if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
            raise CheckpointError(
                f"{path} is no exit adapter of version {VERSION}; make one with "
                "'python -m forerun.training.exit_adapter'."
            )
        width = _number(path, metadata, "hidden_size")
        inner = len(tensors["gate"]) if "gate" in tensors else 0
        shapes = {"norm": (width,), "gate": (inner, width), "up": (inner, width)}
        shapes["down"] = (width, inner)
        for name, shape in shapes.items():
            if name not in tensors or tuple(tensors[name].shape) != shape or inner == 0:
                raise CheckpointError(
                    f"{path} holds no tensor {name!r} of the shape that an adapter of width {width} "
                    "has; the file is incomplete, make it again."
                )
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise CheckpointError(f"{path} holds weights that are no numbers; make it again.")
        return cls(_number(path, metadata, "exit_layer"), metadata.get("target", "?"), **tensors)


def _number(path: str | Path, metadata: Mapping[str, str], name: str) -> int:
    text = metadata.get(name, "")
    if not text.isdecimal() or int(text) < 1:
        raise CheckpointError(f"{path} says {name} {text!r}, which is no count; make it again.")
    return int(text)
