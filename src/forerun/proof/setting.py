"""How a proof draws outputs, and how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun.core import Hints
from forerun.params import SamplingParams

Progress = Callable[[int, int], None]
"""Called with the amount of a part that is done, and the whole amount."""


def unseen(done: int, total: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True)
class Setting:
    """How outputs are drawn, and how many.

    Args:
        params: of the sampler; the proof sets seeds, stops and lengths itself.
        num_tokens: emitted tokens to test, at least.
        output_tokens: length of every output.
        level: probability of a false alarm over all tests of a look together.
        seed: of everything: equal settings give equal results, except under policy auto, which
            depends on measured times.
        hints: of each prompt; empty for no hints.
    """

    params: SamplingParams
    num_tokens: int
    output_tokens: int
    level: float = 0.01
    seed: int = 0
    hints: tuple[Hints, ...] = ()
