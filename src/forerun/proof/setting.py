"""Settings of the outputs that a proof draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun.core import Hints
from forerun.params import SamplingParams

Progress = Callable[[int, int], None]
"""Callback that takes the amount of a part's work done, and the total amount."""


def unseen(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Setting:
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
