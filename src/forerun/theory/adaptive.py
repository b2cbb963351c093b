"""Pure rules for the speculation length: no model, no engine, the simulator uses them too."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from forerun.errors import ConfigError


@dataclass
class AdaptiveLength:
    """Speculate further after good rounds, less far after bad ones.

    The rule is the exercise of the NumPy tutorial on speculative decoding: over the last `window`
    rounds, an acceptance above `grow_above` adds one token, one below `shrink_below` takes one away.

    Args:
        length: tokens to draft in the next round.
        shortest, longest: the length stays within these.
        window: rounds to look back; nothing changes before so many have been seen.
        grow_above, shrink_below: accepted / drafted tokens over the window.

    Raises:
        ConfigError: for limits out of order.
    """

    length: int = 4
    shortest: int = 2
    longest: int = 10
    window: int = 5
    grow_above: float = 0.8
    shrink_below: float = 0.5
    _rounds: deque[tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ConfigError(
                f"lengths from {self.shortest} to {self.longest} are none; give 1 <= shortest <= longest."
            )
        if not 0.0 <= self.shrink_below <= self.grow_above <= 1.0:
            raise ConfigError(
                f"shrink_below is {self.shrink_below} and grow_above {self.grow_above}; "
                "give 0 <= shrink_below <= grow_above <= 1."
            )
        if self.window < 1:
            raise ConfigError(f"window is {self.window}; look back at least one round.")
        self.length = min(max(self.length, self.shortest), self.longest)
        self._rounds = deque(maxlen=self.window)

    def observe(self, drafted: int, accepted: int) -> int:
        """Take in one round that drafted and return the length of the next one."""
        self._rounds.append((drafted, accepted))
        if len(self._rounds) == self.window:
            rate = sum(a for _, a in self._rounds) / sum(d for d, _ in self._rounds)
            if rate > self.grow_above:
                self.length = min(self.length + 1, self.longest)
            elif rate < self.shrink_below:
                self.length = max(self.length - 1, self.shortest)
        return self.length
