"""Options for the amount of work that a proof does, and the outputs that it draws."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
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
TOKENS_A_SECOND, MOST_PROMPTS = 500, 8
"""Tokens of the statistics a second and prompts of the equality at most, where the time decides."""
# Share of the time that the statistics get beside other parts.
STATISTICS = 0.5
# Outputs that show how long one takes.
_FIRST = 2


@options
class Effort:
    """The amount of work that a proof does.

    Raises:
        ConfigError: for a value out of range, or without parts.
    """

    seconds: float = Field(
        default=60.0,
        gt=0,
        le=10**7,
        description="Time for all parts; what has a number of its own takes as long as it takes.",
    )
    num_tokens: int | None = Field(
        default=None,
        ge=1,
        le=2**40,
        description="Tokens for the statistics, at least; left out, what the time allows, up to "
        f"{TOKENS_A_SECOND} a second of --seconds. Four times as many halve the detection limit.",
    )
    output_tokens: int = Field(default=64, ge=2, le=2**31, description="Length of every output.")
    equality_prompts: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="Prompts to decode with and without speculation; left out, what the time allows, up to "
        f"{MOST_PROMPTS}.",
    )
    level: float = Field(
        default=0.01,
        gt=0.0,
        lt=1.0,
        description="Probability of a false alarm of the statistics; squared for forerun's own engine, "
        "at which they look twice.",
    )
    seed: int = Field(default=0, ge=-(2**63), le=2**63 - 1, description="Of everything.")
    part: tuple[Annotated[str, known("part", lambda: PARTS)], ...] = option(
        default=PARTS, description="Run only this part.", repeat=True, names=lambda: PARTS
    )

    def __post_init__(self) -> None:
        if not self.part:
            raise ConfigError(f"part is empty; give some of {', '.join(PARTS)}.")

    def outputs(self, params: SamplingParams, hints: tuple[Hints, ...] = ()) -> ProofOutputs:
        """The outputs that the statistics draw."""
        share = 1.0 if set(self.part) == {"statistics"} else STATISTICS
        most = max(int(TOKENS_A_SECOND * self.seconds), _FIRST * self.output_tokens)
        return ProofOutputs(
            params,
            self.num_tokens or most,
            self.output_tokens,
            self.level,
            self.seed,
            hints,
            None if self.num_tokens else share * self.seconds,
        )


@dataclass
class Allowance:
    """Number of things to do: given, or what a time allows, one at least.

    Args:
        most: number, or most of it.
        seconds: time from now on; None for no limit.
    """

    most: int
    seconds: float | None = None

    def __post_init__(self) -> None:
        self._started = perf_counter()

    def more(self, done: int, batch: int) -> int:
        """Size of the next batch, from the time that earlier ones took."""
        return min(batch, self.expected(done) - done)

    def expected(self, done: int) -> int:
        """Number of things that will have been done, from the time that those so far took."""
        if self.seconds is None:
            return self.most
        if not done:
            return min(self.most, _FIRST)
        spent = perf_counter() - self._started
        fitting = int(done * (self.seconds - spent) / max(spent, 1e-9))
        return min(self.most, done + max(fitting, 0))


@dataclass(frozen=True)
class ProofOutputs:
    """Sampling parameters and number of the outputs that a proof draws.

    Args:
        params: sampling parameters; the proof sets seeds, stops and lengths itself.
        num_tokens: minimum number of emitted tokens to test.
        output_tokens: length of every output.
        level: root of the probability of a false defect, over all tests and both looks together.
        seed: seed of all randomness. Equal settings give equal results, except under policy auto,
            which depends on measured times.
        hints: hints of each prompt; empty for no hints.
        seconds: time after which fewer tokens are enough; None for no limit.
    """

    params: SamplingParams
    num_tokens: int
    output_tokens: int
    level: float = 0.01
    seed: int = 0
    hints: tuple[Hints, ...] = ()
    seconds: float | None = None
