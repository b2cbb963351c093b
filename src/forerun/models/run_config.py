"""Settings that a model runs with: the meaning of `auto`, and what a device or a model lacks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from forerun import _native
from forerun.costs.precision import CODED, QUANTIZED, group_of
from forerun.errors import ConfigError, MemoryLimitError
from forerun.placement import DTYPE_NAMES, Placement, resolve_device
from forerun.processor import last_level_cache

if TYPE_CHECKING:
    from forerun.contracts import CausalLM

DTYPES: dict[str, torch.dtype] = {k: getattr(torch, name) for k, name in DTYPE_NAMES.items()}
# Precision of quantized weights that the kernels hold as in their file, matrix by matrix.
STORED = "stored"
KERNEL_PRECISIONS = ("fp32", "bf16", "int8", "int4")


@dataclass(frozen=True)
class RunConfig:
    """Settings that a model runs with.

    Args:
        precision: precision of its weights, one of `forerun.placement.PRECISIONS`, or STORED.
        backend: `kernels` or `torch`.
        device: device of weights and caches.
        kv_dtype: precision of keys and values, one of `forerun.placement.KV_DTYPES`.
        context: tokens of the longest text, see `forerun.models.architecture.for_context`.
    """

    precision: str
    backend: str
    device: torch.device
    kv_dtype: str = "auto"
    context: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights on torch, and of keys and values, also for quantized weights."""
        return DTYPES.get(self.precision, torch.bfloat16)


def resolve(
    placement: Placement,
    stored: torch.dtype | None,
    *,
    native: bool = True,
    quantized: bool = False,
) -> RunConfig:
    """The settings that a model runs with for a placement.

    Args:
        placement: the user's choice.
        stored: the checkpoint's dtype, which `auto` keeps; None counts as float32, or bfloat16 for
            quantized weights. On the CPU `auto` turns float16, which is slow there, into float32.
        native: True if forerun's own decoder runs the model.
        quantized: True if, under `auto`, the kernels keep the weights as in their file.

    Raises:
        ConfigError: for a precision that the device or backend lacks.
    """
    if quantized and stored is None:
        stored = torch.bfloat16
    device = resolve_device(placement.device)
    if device.type == "mps" and placement.dtype == "fp64":
        raise ConfigError("dtype 'fp64' does not exist on 'mps'; use 'fp32' or the device 'cpu'.")
    auto = placement.dtype == "auto"
    precision = _stored_precision(stored, device) if auto else placement.dtype
    obstacle = _kernel_obstacle(precision, device, native)
    wanted = placement.backend == "kernels" or precision in QUANTIZED or _native_is_fast()
    if obstacle is None and placement.backend != "torch" and wanted:
        precision = STORED if auto and quantized else precision
        return RunConfig(precision, "kernels", device, placement.kv_dtype)
    if placement.backend == "kernels" or precision in QUANTIZED:
        raise ConfigError(
            f"dtype {precision!r} is not available on the kernels: "
            f"{obstacle or 'the backend is torch'}; "
            "use dtype 'bf16' or 'fp32' with the backend 'auto'."
        )
    if not native and placement.kv_dtype != "auto":
        raise ConfigError(
            f"kv_dtype {placement.kv_dtype!r} is not available: the model runs through transformers, with a "
            "cache of its own; leave kv_dtype out."
        )
    return RunConfig(precision, "torch", device, placement.kv_dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype."""
    return next((name for name, known in DTYPES.items() if known is dtype), str(dtype))


def _stored_precision(stored: torch.dtype | None, device: torch.device) -> str:
    dtype = stored if stored in DTYPES.values() else torch.float32
    slow = device.type == "cpu" and dtype is torch.float16
    return dtype_name(torch.float32 if slow or dtype is None else dtype)


def _native_is_fast() -> bool:
    """True if the kernels are more than portable loops, which torch outruns."""
    return _native.AVAILABLE and _native.kernels.level() != "portable"


def _kernel_obstacle(precision: str, device: torch.device, native: bool) -> str | None:
    """The reason why the compiled kernels cannot run a model; None if they can."""
    if device.type != "cpu":
        return f"they run on the CPU, not on {device.type!r}"
    if not native:
        return "the model runs through transformers"
    if precision not in KERNEL_PRECISIONS:
        return f"they support {', '.join(KERNEL_PRECISIONS)}"
    if not _native.AVAILABLE:
        return f"they are not available ({_native.REASON})"
    return None


def draft_precision(int8_bytes: float) -> str:
    """Precision that `auto` means for a draft on the kernels.

    int8 if the bytes that a token reads in int8 fit into half of the last-level cache, through
    which the target's weights stream as well; otherwise int4, which reads least.
    """
    return "int8" if int8_bytes <= last_level_cache() / 2 else "int4"


@dataclass(frozen=True)
class DeviceMemory:
    """Context manager that turns torch's out-of-memory error into an error of our own.

    It is a class because it is entered for every forward: a generator takes several times as long.

    Args:
        device: the device that may run out of memory.
        what: the thing that does not fit, for the message.
        advice: remedy, for the message.
    """

    device: torch.device
    what: str
    advice: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            raise MemoryLimitError(
                f"there is not enough memory on {self.device} for {self.what}; {self.advice}."
            ) from error


Model = TypeVar("Model", bound="CausalLM")


def with_kv_dtype(model: Model, kv_dtype: str) -> Model:
    """The model with the same weights, but caches of another precision.

    Args:
        model: a model on forerun's own decoder.
        kv_dtype: one of `forerun.placement.KV_DTYPES`.

    Raises:
        ConfigError: for heads that no group of int8 or int4 divides.
    """
    if kv_dtype == "auto":
        return model
    other: Any = copy.copy(model)
    if kv_dtype in CODED and group_of(other.head_dim) is None:
        raise ConfigError(
            f"kv_dtype {kv_dtype!r} needs heads of a multiple of 16 dimensions, and those of {other.name} "
            f"have {other.head_dim}; use 'bf16'."
        )
    other.kv_dtype = kv_dtype
    return cast(Model, other)
