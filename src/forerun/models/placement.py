"""Names of dtypes and devices, and what `auto` means."""

from __future__ import annotations

import torch

from forerun.errors import ConfigError, UnknownNameError

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
DEVICES = ("auto", "cpu", "cuda", "mps")


def resolve_device(name: str = "auto") -> torch.device:
    """The device of a name: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, the fastest that is there.

    Raises:
        UnknownNameError: for a name that is none.
        ConfigError: for a device that this machine or this build of torch lacks.
    """
    if name == "auto":
        best = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else best)
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and not (kind in ("cuda", "mps") and index.isdigit())):
        raise UnknownNameError("device", name, DEVICES)
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(index or 0) >= count:
            raise ConfigError(
                f"device {name!r} is not there: torch {torch.__version__} sees {count} CUDA "
                "devices; use 'auto' or 'cpu'."
            )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device 'mps' is not there: it needs macOS on Apple silicon; use 'cpu'.")
    return torch.device(name)


def resolve_dtype(name: str, stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype of a name: `fp32`, `bf16`, `fp16`, `fp64`, or `auto`, the checkpoint's own.

    Args:
        name: of the dtype.
        stored: the checkpoint's dtype; None counts as float32.
        device: on the CPU, `auto` makes float32 of float16, which is slow there.

    Raises:
        UnknownNameError: for a name that is none.
        ConfigError: for a dtype that the device lacks.
    """
    if name == "auto":
        dtype = stored if stored in DTYPES.values() else torch.float32
        slow = device.type == "cpu" and dtype is torch.float16
        return torch.float32 if slow or dtype is None else dtype
    if name not in DTYPES:
        raise UnknownNameError("dtype", name, ("auto", *DTYPES))
    if device.type == "mps" and name == "fp64":
        raise ConfigError("dtype 'fp64' does not exist on 'mps'; use 'fp32' or the device 'cpu'.")
    return DTYPES[name]
