"""Settings of `forerun tune`, declared without loading any model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forerun.drafters import DRAFTERS
from forerun.options import known, options


def _methods() -> list[str]:
    return DRAFTERS.names()


@options
class TuneSettings:
    """Candidates to try, the number of prompts, and the time to spend."""

    methods: tuple[Annotated[str, known("method", _methods)], ...] = Field(
        default=(), description="Methods to try; left out, all that fit the model."
    )
    draft_model: str | None = Field(
        default=None, description="The draft model or trained head of the methods that take one."
    )
    draft_dtypes: tuple[str, ...] = Field(
        default=(), description="Precisions of the draft model to try, such as int8,int4."
    )
    longest: int = Field(default=8, ge=1, le=64, description="Tokens of a draft at most.")
    trees: tuple[int, ...] = Field(
        default=(), description="Nodes of draft trees to try beside chains, such as 16,32."
    )
    batch_sizes: tuple[int, ...] = Field(
        default=(1,), description="Requests side by side, such as 1,4,16."
    )
    num_prompts: int = Field(
        default=12,
        ge=1,
        le=10**6,
        description="Prompts to try at most, of all categories in turns.",
    )
    confirm: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Settings to run beside plain decoding, the best predicted of each batch size.",
    )
    seconds: float = Field(
        default=6.0,
        gt=0,
        le=3600,
        description="Time spent on timing a candidate at a batch size, and on confirming a setting.",
    )
