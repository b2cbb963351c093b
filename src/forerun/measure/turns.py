"""Two sides run in turns: what slows the machine down for a while slows both alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Turns:
    """Median seconds of plain runs and of others, and their ratio by turn: median, least and largest."""

    plain: float
    other: float
    ratio: float
    least: float
    most: float


def in_turns(
    plain: Callable[[], object],
    other: Callable[[], object],
    turns: int,
    see: Callable[[int], object] = lambda _: None,
) -> Turns:
    """Time both sides once a turn; each should have run before.

    Args:
        see: called before each turn with its number.
    """
    times = []
    for turn in range(turns):
        see(turn)
        times.append((seconds_of(plain), seconds_of(other)))
    ratios = [first / second for first, second in times]
    first, second = map(median, zip(*times, strict=True))
    return Turns(first, second, median(ratios), min(ratios), max(ratios))


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = perf_counter()
    run()
    return perf_counter() - started


def at_length(seconds: float, prefill: float, tokens: int, wanted: int) -> float:
    """Seconds of an output of `wanted` tokens at the speed of a run; a prompt takes as long for any output.

    Args:
        seconds, prefill: of the run, and of its prompt.
        tokens: number that the run emitted.
        wanted: number of tokens.
    """
    return prefill + (seconds - prefill) * wanted / tokens if tokens else seconds
