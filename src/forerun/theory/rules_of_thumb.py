"""Rules of thumb of the literature for an acceptance, a cost ratio or a size ratio, as data.

The figures are from five public texts (docs/theory.md, section 12). `advice` compares them with the
formulas.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class RuleOfThumb(NamedTuple):
    """A rule of thumb for one range of a figure.

    Args:
        low, high: the range, its lower end included.
        words: the promise.
        least, most: the range of speed-ups that the promise allows, both ends included. None if nothing
            is promised.
    """

    low: float
    high: float
    words: str
    least: float | None = None
    most: float | None = None

    def allows(self, speedup: float) -> bool | None:
        """True if a speed-up keeps the promise; None if nothing is promised."""
        if self.least is None or self.most is None:
            return None
        return self.least <= speedup <= self.most


_ANY = math.inf

ACCEPTANCE = (
    RuleOfThumb(0.0, 0.30, "hurts", 0.0, 1.0),
    RuleOfThumb(0.30, 0.40, "too little for a draft model: look up or self-speculate", 0.0, 1.2),
    RuleOfThumb(0.40, 0.60, "modest", 1.0, 1.8),
    RuleOfThumb(0.60, 0.75, "substantial", 1.5, _ANY),
    RuleOfThumb(0.75, _ANY, "3 x and more", 3.0, _ANY),
)
"""Rules for the share of tested tokens that are accepted."""

COST_RATIO = (
    RuleOfThumb(0.0, 0.05, "cheaper than the sweet spot of 0.05 to 0.15"),
    RuleOfThumb(0.05, 0.15, "the sweet spot of 0.05 to 0.15", 1.0, _ANY),
    RuleOfThumb(0.15, 0.30, "above the sweet spot of 0.05 to 0.15"),
    RuleOfThumb(0.30, _ANY, "above 0.3, which rarely pays", 0.0, 1.0),
)
"""Rules for the time of a draft forward / time of a plain target forward."""

SIZE_RATIO = (
    RuleOfThumb(0.0, 5.0, "below the range of 5 to 30: the draft is too large", 0.0, 1.0),
    RuleOfThumb(5.0, 30.0, "in the range of 5 to 30", 1.0, _ANY),
    RuleOfThumb(
        30.0, _ANY, "above the range of 5 to 30: the draft is too small to be accepted", 0.0, 1.0
    ),
)
"""Rules for the parameters of the target / parameters of the draft model."""


def rule_for(rules: tuple[RuleOfThumb, ...], figure: float) -> RuleOfThumb:
    """The rule whose range contains the figure."""
    return next(rule for rule in rules if figure < rule.high or rule.high == _ANY)
