"""All that can come of code that draws with uniforms, with its probabilities, from outside.

The code is run again and again with chosen numbers. Between two numbers that lead to different
results lies an edge, which bisection finds to the last bits. The law is exact up to rounding for
code that compares each number with thresholds, as inverting a cumulative distribution and testing
with a probability do, rightly or wrongly; two edges within one step of the first grid hide each
other where the results on both sides of them are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from forerun.errors import ConfigError
from forerun.randomness import Key, Purpose, Randomness

T = TypeVar("T")
Run = Callable[[Randomness], T]
Sign = Callable[[T], Hashable]

# Places where a unit interval is looked at first; edges between two that agree would be missed.
_GRID = 16
# Edges are found to this width, in as many trials as it has bits.
_WIDTH = 2.0**-46
# What the numbers not chosen yet are meanwhile: two sets, so that no coincidence hides an edge.
_FILLERS = (0.5, 0.137)


class NoiseError(ConfigError):
    """What was to be enumerated draws with the noise of a seed."""


class Replay(Randomness):
    """Hands out the chosen numbers in the order in which new keys come up, then a filler."""

    def __init__(self, chosen: tuple[float, ...], filler: float) -> None:
        super().__init__()
        self._chosen, self._filler = chosen, filler
        self.drawn: dict[Key, float] = {}

    def uniform(self, seed: int, position: int, purpose: Purpose, node: int = 0) -> float:
        key = Key(seed, position, purpose, node)
        if key not in self.drawn:
            index = len(self.drawn)
            self.drawn[key] = self._chosen[index] if index < len(self._chosen) else self._filler
        return self.drawn[key]

    def gumbel(
        self, seed: int, position: int, size: int, device: torch.device | str = "cpu"
    ) -> Tensor:
        raise NoiseError("noise cannot be enumerated; only what draws with uniforms can be.")


def outcomes(run: Run[T], sign: Sign[T]) -> list[tuple[float, T]]:
    """Every result of `run` with its probability, equal ones apart where they came about apart.

    Args:
        run: a pure function of its random numbers.
        sign: what tells two results apart.

    Raises:
        NoiseError: where `run` asks for noise.
    """
    return list(_explore(run, sign, (), 1.0))


def _explore(
    run: Run[T], sign: Sign[T], chosen: tuple[float, ...], weight: float
) -> Iterator[tuple[float, T]]:
    replay = Replay(chosen, _FILLERS[0])
    result = run(replay)
    if len(replay.drawn) == len(chosen):
        yield weight, result
        return
    for low, high in _cells(lambda number: _signature(run, sign, (*chosen, number))):
        middle = (low + high) / 2
        yield from _explore(run, sign, (*chosen, middle), weight * (high - low))


def _signature(run: Run[T], sign: Sign[T], chosen: tuple[float, ...]) -> Hashable:
    seen: list[Hashable] = []
    for filler in _FILLERS:
        replay = Replay(chosen, filler)
        result = run(replay)
        seen.append((tuple(replay.drawn), sign(result)))
    return tuple(seen)


def _cells(signature: Callable[[float], Hashable]) -> Iterator[tuple[float, float]]:
    """The stretches of [0, 1) on which the signature does not change."""
    places = [index / _GRID for index in range(_GRID)] + [1.0 - 2.0**-53]
    found = [signature(place) for place in places]
    edges = [0.0]
    for index in range(_GRID):
        edges += _edges(signature, places[index : index + 2], found[index : index + 2])
    return zip(edges, [*edges[1:], 1.0], strict=True)


def _edges(
    signature: Callable[[float], Hashable], places: list[float], found: list[Hashable]
) -> list[float]:
    low, high = places
    if found[0] == found[1]:
        return []
    if high - low < _WIDTH:
        return [high]
    middle = (low + high) / 2
    at_middle = signature(middle)
    return [
        *_edges(signature, [low, middle], [found[0], at_middle]),
        *_edges(signature, [middle, high], [at_middle, found[1]]),
    ]
