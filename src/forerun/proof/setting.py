"""What the statistics draw and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core import Hints
from forerun.params import SamplingParams


@dataclass(frozen=True)
class Setting:
    """What to test and how much of it.

    Args:
        params: how tokens are drawn; seeds, stops and lengths are set here.
        num_tokens: emitted tokens to test, at least.
        output_tokens: of every output.
        level: probability of a false alarm over all tests together, for each look.
        seed: of everything: equal settings give equal results, the monitor apart, which goes by
            measured times.
        hints: of each prompt; none if empty.
    """

    params: SamplingParams
    num_tokens: int
    output_tokens: int
    level: float = 0.01
    seed: int = 0
    hints: tuple[Hints, ...] = ()
