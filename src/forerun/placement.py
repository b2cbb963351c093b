"""A user's choice of precision, device and backend for a model, which is declared without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from forerun.errors import ConfigError, UnknownNameError
from forerun.options import Text, known, options

if TYPE_CHECKING:
    import torch

DTYPE_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
"""Names of torch's precisions, and torch's own names of them."""

_LONG_NAMES = {
    **{name: short for short, name in DTYPE_NAMES.items()},
    "half": "fp16",
    "float": "fp32",
    "double": "fp64",
}
PRECISIONS = (*DTYPE_NAMES, "int8", "int4")
DEVICES = ("auto", "cpu", "cuda", "mps")
BACKENDS = ("auto", "kernels", "torch")
KV_DTYPES = ("auto", "fp32", "bf16", "int8", "int4")


def resolve_device(name: str = "auto") -> torch.device:
    """The device called `name`: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, the fastest available.

    Raises:
        UnknownNameError: for a name that does not exist.
        ConfigError: for a device that this machine or this build of torch lacks.
    """
    import torch

    if name == "auto":
        best = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else best)
    kind, colon, index = name.partition(":")
    numbered = kind in ("cuda", "mps") and index.isascii() and index.isdecimal()
    if kind not in DEVICES or (colon and not numbered):
        raise UnknownNameError("device", name, DEVICES)
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(index[:9] or 0) >= count:
            raise ConfigError(
                f"device {name!r} is not available: torch {torch.__version__} sees {count} CUDA "
                "devices; use 'auto' or 'cpu'."
            )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            "device 'mps' is not available: it needs macOS on Apple silicon; use 'cpu'."
        )
    return torch.device(name)


def _there(name: str) -> str:
    resolve_device(name)
    return name


def _named(value: Any) -> Any:
    """A dtype or a device of torch by its name; any other value as it is."""
    return str(value) if type(value).__module__ == "torch" else value


def _short_dtype(value: Any) -> Any:
    """The short name of a dtype of torch, given as a dtype or by its long name."""
    full = _named(value)
    return _LONG_NAMES.get(full.removeprefix("torch."), full) if isinstance(full, str) else full


@options
class Placement:
    """The user's choice of precision, device and backend for a model."""

    dtype: Annotated[
        str, known("dtype", lambda: ("auto", *PRECISIONS)), BeforeValidator(_short_dtype)
    ] = Field(
        default="auto",
        description="auto (as stored), fp32, bf16, fp16, or on the CPU kernels int8 or int4.",
    )
    device: Annotated[Text, AfterValidator(_there), BeforeValidator(_named)] = Field(
        default="auto", description="auto (the fastest), cpu, cuda, cuda:1 or mps."
    )
    backend: Annotated[str, known("backend", lambda: BACKENDS)] = Field(
        default="auto", description="kernels (forerun's own, on the CPU), torch, or auto."
    )
    kv_dtype: Annotated[str, known("kv_dtype", lambda: KV_DTYPES)] = Field(
        default="auto",
        description="Precision of the target's keys and values: auto (as its weights, or bf16), fp32, bf16, "
        "int8 or int4; part of the model, like --dtype.",
    )
