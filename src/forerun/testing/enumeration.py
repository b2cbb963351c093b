"""Exact distributions by enumeration: of code that draws uniform numbers, and of a rule's output.

Code is run many times with chosen numbers. Between two numbers with different results lies an
edge, which bisection locates to the last bits. The distribution is exact up to rounding for code that
compares each number with thresholds, as in inverting a cumulative distribution or testing with a
probability. Two edges within one step of the first grid are missed if the results on both sides of
them are equal.

A rule's distributions are over whole sequences: the accepted path, the emitted token, then plain
decoding up to a common length. So the effect of a rule on later rounds counts too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from forerun.core import Draft, Request, Tree
from forerun.errors import ConfigError
from forerun.randomness import Key, Purpose, Randomness
from forerun.sampling import Prefix, warp
from forerun.testing.toy import ToyModel
from forerun.theory.acceptance import end_probabilities
from forerun.theory.inputs import Floats
from forerun.verification.decision import Decision

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
    """The keys drawn and the result, for each filler in place of later numbers if there are any."""
    seen: list[Hashable] = []
    for filler in _FILLERS:
        numbers = ChosenNumbers(chosen, filler)
        result = run(numbers)
        seen.append((tuple(numbers.drawn), sign(result)))
        if len(numbers.drawn) <= len(chosen):
            break
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


Distribution = dict[tuple[int, ...], float]
Outcomes = Iterable[tuple[float, tuple[int, ...]]]
Emit = Callable[[Draft, Tensor], Outcomes]
"""Function from a draft and the target's rows to all outcomes: emitted tokens and probability."""


class Rows(Protocol):
    """A language model given by its rows: a distribution after every prefix."""

    vocab_size: int

    def row(self, prefix: tuple[int, ...]) -> Floats:
        """The distribution of the token after `prefix`, [V]."""


class RandomRows:
    """Random rows for every prefix; a share of the entries is zero, as after top-k and masks."""

    def __init__(self, vocab_size: int, seed: int, zeros: float = 0.3) -> None:
        self.vocab_size, self.seed, self.zeros = vocab_size, seed, zeros
        self._rows: dict[tuple[int, ...], Floats] = {}

    def row(self, prefix: tuple[int, ...]) -> Floats:
        if prefix not in self._rows:
            random = np.random.default_rng([self.seed, 7, *prefix])
            row = random.dirichlet(np.full(self.vocab_size, 0.7))
            row[random.random(self.vocab_size) < self.zeros] = 0.0
            if row.sum() == 0:
                row[random.integers(self.vocab_size)] = 1.0
            self._rows[prefix] = row / row.sum()
        return self._rows[prefix]


class WarpedRows:
    """The rows of a toy model after a request, warped by the sampler with its parameters."""

    def __init__(self, model: ToyModel, request: Request) -> None:
        self.vocab_size = model.vocab_size
        self.model, self.request = model, request
        self._rows: dict[tuple[int, ...], Floats] = {}

    def row(self, prefix: tuple[int, ...]) -> Floats:
        if prefix not in self._rows:
            logits = self.model.next_logits([*self.request.token_ids, *prefix])
            self._rows[prefix] = warp(logits[None], [Prefix(self.request, prefix)])[0].numpy()
        return self._rows[prefix]


def target_distribution(rows: Rows, length: int) -> Distribution:
    """The distribution of plain decoding over sequences of `length` tokens."""
    distribution = {}
    for sequence in itertools.product(range(rows.vocab_size), repeat=length):
        steps = [rows.row(sequence[:index])[token] for index, token in enumerate(sequence)]
        distribution[sequence] = float(np.prod(steps))
    return distribution


def target_rows(rows: Rows, draft: Draft) -> Tensor:
    """The target's rows for a draft of n nodes, float64 [n + 1, V]."""
    nodes = range(-1, len(draft))
    return torch.tensor(np.array([rows.row(tuple(draft.tokens_to(node))) for node in nodes]))


def drawn_drafts(
    rows: Rows, parents: tuple[int, ...], replacement: bool = False
) -> Iterator[tuple[float, Draft]]:
    """Every draft that can be drawn over a tree, with its probability and its rows.

    Args:
        rows: distributions that the nodes are drawn from.
        parents: parent of each node of the tree.
        replacement: True if a sibling may repeat the token of an earlier one.
    """

    def grow(
        tokens: tuple[int, ...], drawn: list[Floats], probability: float
    ) -> Iterator[tuple[float, tuple[int, ...], list[Floats]]]:
        node = len(tokens)
        if node == len(parents):
            yield probability, tokens, drawn
            return
        partial = Draft(Tree(parents[:node]), tokens)
        row = rows.row(tuple(partial.tokens_to(parents[node]))).copy()
        if not replacement:
            row[[tokens[sibling] for sibling in partial.tree.children(parents[node])]] = 0.0
        if row.sum() <= 0:
            return  # No token is left, so a drafter would propose a smaller tree.
        row = row / row.sum()
        for token in np.flatnonzero(row):
            yield from grow((*tokens, int(token)), [*drawn, row], probability * row[token])

    for probability, tokens, drawn in grow((), [], 1.0):
        yield probability, Draft(Tree(parents), tokens, torch.tensor(np.array(drawn)))


def by_decision(decide: Callable[[Draft, Tensor], Decision]) -> Emit:
    """An `Emit` that enumerates every branch of a decision's tests."""

    def emit(draft: Draft, probs: Tensor) -> Outcomes:
        decision = decide(draft, probs)
        ends = ends_of(decision, len(draft))
        for end in range(-1, len(draft)):
            if ends[end + 1] == 0.0:
                continue
            path = draft.tokens_to(end)
            for token, share in enumerate(decision.emit[end + 1].tolist()):
                yield ends[end + 1] * share, (*path, token)

    return emit


def ends_of(decision: Decision, num_nodes: int) -> Floats:
    """Probability that the walk ends at each node, [n + 1], starting with the last committed token."""
    return end_probabilities(
        decision.accept.double().cpu().numpy(),
        decision.on_accept,
        decision.on_reject,
        decision.start,
        num_nodes,
    )


def emitted_distribution(
    emit: Emit, target: Rows, drafts: Iterable[tuple[float, Draft]], length: int
) -> Distribution:
    """The distribution of sequences of `length` tokens from one round and then plain decoding."""
    distribution: Distribution = defaultdict(float)

    def complete(emitted: tuple[int, ...], weight: float) -> None:
        if len(emitted) >= length:
            distribution[emitted[:length]] += weight
            return
        for token, share in enumerate(target.row(emitted)):
            if share:
                complete((*emitted, token), weight * share)

    for probability, draft in drafts:
        for share, emitted in emit(draft, target_rows(target, draft)):
            if probability * share:
                complete(emitted, probability * share)
    return distribution


def deviation(distribution: Distribution, truth: Distribution) -> float:
    """The largest difference between two probabilities of a sequence; infinite if one is NaN."""
    sequences = {*distribution, *truth}
    differences = [abs(distribution.get(key, 0.0) - truth.get(key, 0.0)) for key in sequences]
    return float(np.nan_to_num(differences, nan=np.inf).max())
