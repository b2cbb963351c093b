"""Options for the amount of work that a proof does."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forerun.errors import ConfigError
from forerun.options import known, options

PARTS = ("enumeration", "statistics", "equality")
Part = Annotated[str, known("part", lambda: PARTS)]
# Defaults of the command line: outputs decoded at once, and tokens used of each prompt.
DEFAULT_BATCH = 32
DEFAULT_PROMPT_TOKENS = 64


@options
class Effort:
    """The amount of work that a proof does.

    Raises:
        ConfigError: for a value out of range, or without parts.
    """

    num_tokens: int = Field(
        default=20_000,
        ge=1,
        le=2**40,
        description="Tokens for the statistics, at least; four times as many halve the detection limit.",
    )
    output_tokens: int = Field(default=128, ge=2, le=2**31, description="Length of every output.")
    equality_prompts: int = Field(
        default=8, ge=1, le=2**31, description="Prompts to decode with and without speculation."
    )
    level: float = Field(
        default=0.01,
        gt=0.0,
        lt=1.0,
        description="Probability of a false alarm of the statistics, before a second look.",
    )
    seed: int = Field(default=0, ge=-(2**63), le=2**63 - 1, description="Of everything.")
    parts: tuple[Part, ...] = Field(default=PARTS, description="Which parts to run.")

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError(f"parts are empty; give some of {', '.join(PARTS)}.")
