"""How hard a proof tries."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.checks import Check, normalize, number, several, text, whole
from forerun.errors import ConfigError

PARTS = ("enumeration", "statistics", "equality")
# Of the command line: outputs at once, and the tokens that are kept of a prompt.
DEFAULT_BATCH = 32
DEFAULT_PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Effort:
    """How hard to try.

    Args:
        num_tokens: emitted tokens that the statistics test, at least.
        output_tokens: of every output.
        equality_prompts: prompts that are decoded with and without speculation.
        level: probability of a false alarm of each look of the statistics.
        seed: of everything.
        parts: which to run.

    Raises:
        ConfigError: for what cannot be done.
    """

    num_tokens: int = 20_000
    output_tokens: int = 128
    equality_prompts: int = 8
    level: float = 0.01
    seed: int = 0
    parts: tuple[str, ...] = PARTS

    def __post_init__(self) -> None:
        normalize(self, _CHECKS)
        if self.level >= 1.0:
            raise ConfigError(f"level is {self.level}; give a probability between 0 and 1.")
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ConfigError(f"parts are {self.parts}; give some of {', '.join(PARTS)}.")


_CHECKS: dict[str, Check] = {
    "num_tokens": whole(1, 2**40),
    "output_tokens": whole(2, 2**31),
    "equality_prompts": whole(1, 2**31),
    "level": number(0.0, 1.0, above=True),
    "seed": whole(-(2**63), 2**63 - 1),
    "parts": several(text),
}
