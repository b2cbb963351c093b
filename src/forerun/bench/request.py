"""What `forerun bench kernels` measures, declared without loading any model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from forerun.options import known, options

LONGEST = 512
MOST_CONTEXT = 1 << 17


def _models() -> Iterable[str]:
    from forerun.bench.shapes import MODELS  # Here, because models load torch.

    return MODELS


def _precisions() -> Iterable[str]:
    from forerun.models.placement import KERNEL_PRECISIONS, STORED

    return (*KERNEL_PRECISIONS, STORED)


_Model = Annotated[str, known("model", _models)]
_Precision = Annotated[str, known("precision", _precisions)]
_Tokens = Annotated[int, Field(ge=1, le=LONGEST)]
_Context = Annotated[int, Field(ge=0, le=MOST_CONTEXT)]


@options
class Request:
    """What to measure.

    Raises:
        ConfigError: for a number out of range.
        UnknownNameError: for an unknown name.
    """

    models: tuple[_Model, ...] = Field(default=("zoo", "llama-110m"), description="By name.")
    precisions: tuple[_Precision, ...] = Field(
        default=("bf16", "int8", "int4", "fp32"),
        description="Of the weights; stored is that of a GGUF file, such as smollm2.",
    )
    tokens: tuple[_Tokens, ...] = Field(
        default=(1, 2, 4, 8, 16, 32, 64),
        description="Of a forward; 1 is always measured too.",
    )
    contexts: tuple[_Context, ...] = Field(
        default=(128, 4096), description="Tokens in the cache before it."
    )
    rounds: int = Field(
        default=7, ge=1, le=10_000, description="Times that everything is measured, in alternation."
    )
