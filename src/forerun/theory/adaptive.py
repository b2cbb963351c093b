"""Pure rules for the speculation length: no model, no engine, the simulator uses them too."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pydantic import Field

from forerun.errors import ConfigError
from forerun.options import options


@options
class AdaptiveLimits:
    """How far and how quickly an adaptive length moves."""

    shortest_draft: int = Field(default=2, ge=1, le=64, description="Tokens to draft at least.")
    longest_draft: int = Field(default=10, ge=1, le=64, description="Tokens to draft at most.")
    acceptance_window: int = Field(
        default=5, ge=1, le=1000, description="Rounds that the acceptance is taken over."
    )
    grow_above: float = Field(
        default=0.8, ge=0.0, le=1.0, description="Draft one token more above this acceptance."
    )
    shrink_below: float = Field(
        default=0.5, ge=0.0, le=1.0, description="Draft one token less below this acceptance."
    )

    def __post_init__(self) -> None:
        if self.shortest_draft > self.longest_draft:
            raise ConfigError(
                f"shortest_draft is {self.shortest_draft} and longest_draft {self.longest_draft}; "
                "give shortest <= longest."
            )
        if self.shrink_below > self.grow_above:
            raise ConfigError(
                f"shrink_below is {self.shrink_below:g} and grow_above {self.grow_above:g}; "
                "give shrink_below <= grow_above."
            )


@dataclass
class AdaptiveLength:
    """Speculate further after good rounds, less far after bad ones.

    The rule is the exercise of the NumPy tutorial on speculative decoding: over the last rounds, a
    high acceptance (accepted / drafted tokens) adds one token, a low one takes one away. Nothing
    changes before a whole window of rounds has been seen.

    Args:
        length: tokens to draft in the next round, brought within the limits.
        limits: when it changes, and how far.
    """

    length: int = 4
    limits: AdaptiveLimits = field(default_factory=AdaptiveLimits)
    _rounds: deque[tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.length = min(max(self.length, limits.shortest_draft), limits.longest_draft)
        self._rounds = deque(maxlen=limits.acceptance_window)

    def observe(self, drafted: int, accepted: int) -> int:
        """Take in one round that drafted and return the length of the next one."""
        limits = self.limits
        self._rounds.append((drafted, accepted))
        if len(self._rounds) == limits.acceptance_window:
            rate = sum(a for _, a in self._rounds) / sum(d for d, _ in self._rounds)
            if rate > limits.grow_above:
                self.length = min(self.length + 1, limits.longest_draft)
            elif rate < limits.shrink_below:
                self.length = max(self.length - 1, limits.shortest_draft)
        return self.length
