"""Options for the amount of work that a proof does, and the outputs that it draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from forerun.core import Hints
from forerun.errors import ConfigError
from forerun.options import known, option, options
from forerun.params import SamplingParams

PARTS = ("enumeration", "statistics", "equality")
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
    parts: tuple[Annotated[str, known("part", lambda: PARTS)], ...] = option(
        default=PARTS,
        description="Run only this part.",
        repeat=True,
        names=lambda: PARTS,
    )

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError(f"parts are empty; give some of {', '.join(PARTS)}.")


@dataclass(frozen=True)
class ProofOutputs:
    """Sampling parameters and number of the outputs that a proof draws.

    Args:
        params: sampling parameters; the proof sets seeds, stops and lengths itself.
        num_tokens: minimum number of emitted tokens to test.
        output_tokens: length of every output.
        level: probability of a false alarm over all tests of a look together.
        seed: seed of all randomness. Equal settings give equal results, except under policy auto,
            which depends on measured times.
        hints: hints of each prompt; empty for no hints.
    """

    params: SamplingParams
    num_tokens: int
    output_tokens: int
    level: float = 0.01
    seed: int = 0
    hints: tuple[Hints, ...] = ()
