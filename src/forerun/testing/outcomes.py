"""Finds all outcomes, with probabilities, of code that draws uniform numbers, by running it.

The code is run many times with chosen numbers. Between two numbers with different results lies an
edge, which bisection locates to the last bits. The distribution is exact up to rounding for code that
compares each number with thresholds, as in inverting a cumulative distribution or testing with a
probability. Two edges within one step of the first grid are missed if the results on both sides of
them are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from forerun.errors import ConfigError
from forerun.randomness import Key, Purpose, Randomness

T = TypeVar("T")
Sign = Callable[[T], Hashable]

# Number of points of the unit interval tried first; edges between two points that agree are missed.
_GRID = 16
# Width to which edges are located, by one trial per bit.
_WIDTH = 2.0**-46
# Values of numbers not chosen yet. There are two, so that no coincidence hides an edge.
_FILLERS = (0.5, 0.137)


class NoiseError(ConfigError):
    """Raised if the enumerated code draws with the noise of a seed."""


class ChosenNumbers(Randomness):
    """Randomness that returns the chosen numbers for new keys in order, and then a filler."""

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
        raise NoiseError("noise cannot be enumerated; only code that draws with uniforms can.")


def outcomes(run: Callable[[Randomness], T], sign: Sign[T]) -> list[tuple[float, T]]:
    """Every result of `run` with its probability; equal results of different draws stay separate.

    Args:
        run: a pure function of its random numbers.
        sign: hashable value of a result, which tells results apart.

    Raises:
        NoiseError: if `run` draws noise.
    """
    return list(_explore(run, sign, (), 1.0))


def _explore(
    run: Callable[[Randomness], T], sign: Sign[T], chosen: tuple[float, ...], weight: float
) -> Iterator[tuple[float, T]]:
    numbers = ChosenNumbers(chosen, _FILLERS[0])
    result = run(numbers)
    if len(numbers.drawn) == len(chosen):
        yield weight, result
        return
    for low, high in _cells(lambda number: _signature(run, sign, (*chosen, number))):
        middle = (low + high) / 2
        yield from _explore(run, sign, (*chosen, middle), weight * (high - low))


def _signature(
    run: Callable[[Randomness], T], sign: Sign[T], chosen: tuple[float, ...]
) -> Hashable:
    """The keys drawn and the result, for each filler in place of later numbers."""
    seen: list[Hashable] = []
    for filler in _FILLERS:
        numbers = ChosenNumbers(chosen, filler)
        result = run(numbers)
        seen.append((tuple(numbers.drawn), sign(result)))
    return tuple(seen)


def _cells(signature: Callable[[float], Hashable]) -> Iterator[tuple[float, float]]:
    """The intervals of [0, 1) on which the signature does not change."""
    points = [index / _GRID for index in range(_GRID)] + [1.0 - 2.0**-53]
    signatures = [signature(point) for point in points]
    edges = [0.0]
    for index in range(_GRID):
        edges += _edges(signature, points[index : index + 2], signatures[index : index + 2])
    return zip(edges, [*edges[1:], 1.0], strict=True)


def _edges(
    signature: Callable[[float], Hashable], points: list[float], signatures: list[Hashable]
) -> list[float]:
    low, high = points
    if signatures[0] == signatures[1]:
        return []
    if high - low < _WIDTH:
        return [high]
    middle = (low + high) / 2
    at_middle = signature(middle)
    return [
        *_edges(signature, [low, middle], [signatures[0], at_middle]),
        *_edges(signature, [middle, high], [at_middle, signatures[1]]),
    ]
