"""What drafting rounds cost by their nodes and levels, from rounds of the engine itself."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from forerun.bench.questions import Question
from forerun.engine.engine import Engine
from forerun.stats import Stats
from forerun.trees import TreeShape
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_shape

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128)
_PASSES = 3


class Studied(Protocol):
    """A pair of models and prompts to run it on; see `forerun.bench.trees.Study`."""

    questions: list[Question]

    def engine(self, **options: object) -> Engine: ...

    def run(self, engine: Engine, questions: list[Question], temperature: float) -> list[Stats]: ...


@dataclass(frozen=True)
class RoundCosts:
    """Seconds of a round: of its nodes, linear between those measured, and so much for each level.

    Args:
        nodes: where was measured.
        seconds_by_nodes: of a round without its levels.
        seconds_per_level: of drafting.
        plain_seconds: of a round without a draft.
    """

    nodes: tuple[int, ...]
    seconds_by_nodes: tuple[float, ...]
    seconds_per_level: float
    plain_seconds: float

    def seconds(self, num_nodes: int, levels: int) -> float:
        """Of a round whose tree has so many nodes and levels."""
        below = np.interp(num_nodes, self.nodes, self.seconds_by_nodes)
        return float(below + levels * self.seconds_per_level)

    def table(self) -> str:
        """For people."""
        points = zip(self.nodes, self.seconds_by_nodes, strict=True)
        shown = ", ".join(f"{1e3 * seconds:.2f} with {nodes}" for nodes, seconds in points)
        return (
            f"a plain round takes {1e3 * self.plain_seconds:.2f} ms, a round by its nodes {shown}, "
            f"and {1e3 * self.seconds_per_level:.2f} more a level"
        )


def measure_costs(one: Studied, most_nodes: int, depth: int) -> RoundCosts:
    """Time rounds of trees of different sizes and depths, in turns, and take them apart."""
    knots = [knot for knot in KNOTS if knot < most_nodes] + [most_nodes]
    shapes = {
        best_shape(TYPICAL_ACCEPTANCE, knot, levels).shape
        for knot in knots
        for levels in {1, 2, depth}
        if levels <= knot
    }
    shapes |= {TreeShape.chain(min(knot, depth)) for knot in knots}
    engines = {shape: one.engine(tree=shape, num_speculative_tokens=depth) for shape in shapes}
    plain = one.engine()
    found: dict[TreeShape | None, list[float]] = {shape: [] for shape in (*shapes, None)}
    for _ in range(_PASSES):
        for shape, engine in engines.items():
            found[shape].append(_median_round(one, engine))
        found[None].append(_plain_round(one, plain))
    ordered = sorted(shapes, key=lambda shape: shape.parents)
    rows = [[*_hats(len(shape), knots), shape.depth] for shape in ordered]
    seconds = [min(found[shape]) for shape in ordered]
    # Relative errors: a round of few nodes is to be known as well as one of many.
    weights = 1.0 / np.array(seconds)
    solved = np.linalg.lstsq(np.array(rows) * weights[:, None], np.ones(len(rows)), rcond=None)[0]
    by_nodes = np.maximum.accumulate(np.maximum(solved[:-1], 1e-6))
    per_level = max(float(solved[-1]), 0.0)
    return RoundCosts(tuple(knots), tuple(by_nodes.tolist()), per_level, min(found[None]))


def _hats(nodes: int, knots: list[int]) -> list[float]:
    """How much each knot weighs in a linear interpolation at `nodes`."""
    return [float(np.interp(nodes, knots, np.eye(len(knots))[at])) for at in range(len(knots))]


def _median_round(one: Studied, engine: Engine) -> float:
    """Of full drafts, between the ends of two rounds."""
    ends: list[tuple[int, float]] = []
    engine.watch_rounds(lambda _, draft, __: ends.append((len(draft), perf_counter())))
    one.run(engine, one.questions[:1], 0.0)
    largest = max(nodes for nodes, _ in ends)
    spans = [b[1] - a[1] for a, b in itertools.pairwise(ends) if b[0] == largest]
    return float(np.median(spans or [np.inf]))


def _plain_round(one: Studied, engine: Engine) -> float:
    assert engine.tokenizer is not None, "loaded by name"
    prompt = engine.tokenizer.encode(one.questions[0].prompt)[-1024:]
    stream = engine.stream_plain(list(prompt))
    for _, _ in zip(stream, range(32), strict=False):
        pass
    stream.close()
    stats = stream.completion.stats
    return stats.seconds / stats.num_target_forwards
