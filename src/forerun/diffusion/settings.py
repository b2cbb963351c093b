"""Types of settings with their bounds, which methods and the requests of commands share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field


def _in_order(window: tuple[float, float]) -> tuple[float, float]:
    if window[0] > window[1]:
        raise ValueError("its shares must be in order")
    return window


_Share = Annotated[float, Field(ge=0.0, le=1.0)]
Window = Annotated[tuple[_Share, _Share], AfterValidator(_in_order)]
"""Range of a sampling run, as shares of its steps, in order."""
WHOLE_RUN = (0.0, 1.0)
StepInterval = Annotated[int, Field(ge=1, le=10_000)]
"""Number of steps or frames from one full one to the next."""
DriftBound = Annotated[float, Field(ge=0.0)]
RefineSteps = Annotated[int, Field(ge=0, le=10_000)]
Interpolation = Literal["slerp", "linear", "nearest"]
DraftSteps = Annotated[int, Field(ge=1, le=1024)]
DraftKind = Literal["frozen", "extrapolated"]
"""Draft that assumes the clean sample of the last pass, or continues the change between the last two."""
