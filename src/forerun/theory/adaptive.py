"""A pure rule for the speculation length, without model or engine; the simulator uses it too."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pydantic import Field

from forerun.errors import ConfigError
from forerun.options import options


@options
class AdaptiveLimits:
    """Limits and thresholds of an adaptive speculation length."""

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
    """A speculation length that grows after good rounds and shrinks after bad ones.

    The rule is an exercise of the NumPy tutorial on speculative decoding: a high acceptance (accepted /
    drafted tokens) over the last rounds adds one token, a low acceptance removes one. Nothing changes
    before a whole window of rounds has been seen.

    Args:
        length: tokens to draft in the next round, clamped to the limits.
        limits: limits and thresholds of changes.
    """

    length: int = 4
    limits: AdaptiveLimits = field(default_factory=AdaptiveLimits)
    _rounds: deque[tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.length = min(max(self.length, limits.shortest_draft), limits.longest_draft)
        self._rounds = deque(maxlen=limits.acceptance_window)

    def observe(self, drafted: int, accepted: int) -> int:
        """Record one round that drafted, and return the length of the next round."""
        limits = self.limits
        self._rounds.append((drafted, accepted))
        if len(self._rounds) == limits.acceptance_window:
            rate = sum(a for _, a in self._rounds) / sum(d for d, _ in self._rounds)
            if rate > limits.grow_above:
                self.length = min(self.length + 1, limits.longest_draft)
            elif rate < limits.shrink_below:
                self.length = max(self.length - 1, limits.shortest_draft)
        return self.length
