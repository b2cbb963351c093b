"""The cost of drafting rounds by nodes and levels, measured in rounds of the engine itself."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from forerun.core import Stats, Tree
from forerun.engine.engine import Engine
from forerun.measure.questions import Question
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_shape

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128)
_PASSES = 3


class Study(Protocol):
    """A pair of models and prompts to run it on; see `benchmarks.trees.Study`."""

    questions: list[Question]

    def engine(self, **options: object) -> Engine: ...

    def run(self, engine: Engine, questions: list[Question], temperature: float) -> list[Stats]: ...


@dataclass(frozen=True)
class TreeCosts:
    """Seconds of a round: a part by nodes, linear between measured numbers, and a part per level.

    Args:
        nodes: the measured numbers.
        seconds_by_nodes: of a round without its levels.
        seconds_per_level: of drafting.
        plain_seconds: of a round without a draft.
    """

    nodes: tuple[int, ...]
    seconds_by_nodes: tuple[float, ...]
    seconds_per_level: float
    plain_seconds: float

    def seconds(self, num_nodes: int, levels: int) -> float:
        """Of a round with such a tree."""
        verifying = np.interp(num_nodes, self.nodes, self.seconds_by_nodes)
        return float(verifying + levels * self.seconds_per_level)

    def table(self) -> str:
        """For people."""
        points = zip(self.nodes, self.seconds_by_nodes, strict=True)
        shown = ", ".join(f"{1e3 * seconds:.2f} with {nodes}" for nodes, seconds in points)
        return (
            f"a plain round takes {1e3 * self.plain_seconds:.2f} ms, a round by its nodes {shown}, "
            f"and {1e3 * self.seconds_per_level:.2f} more per level"
        )


def measure_costs(study: Study, most_nodes: int, depth: int) -> TreeCosts:
    """Time rounds of trees of different sizes and depths, in turns, and fit the two parts."""
    knots = [knot for knot in KNOTS if knot < most_nodes] + [most_nodes]
    shapes = {
        best_shape(TYPICAL_ACCEPTANCE, knot, levels).shape
        for knot in knots
        for levels in {1, 2, depth}
        if levels <= knot
    }
    shapes |= {Tree.chain(min(knot, depth)) for knot in knots}
    engines = {shape: study.engine(tree=shape, num_speculative_tokens=depth) for shape in shapes}
    plain = study.engine()
    times: dict[Tree | None, list[float]] = {shape: [] for shape in (*shapes, None)}
    for _ in range(_PASSES):
        for shape, engine in engines.items():
            times[shape].append(_median_round(study, engine))
        times[None].append(_plain_round(study, plain))
    ordered = sorted(shapes, key=lambda shape: shape.parents)
    rows = [[*_hats(len(shape), knots), shape.depth] for shape in ordered]
    seconds = [min(times[shape]) for shape in ordered]
    # Relative errors: rounds of few nodes matter as much as those of many.
    weights = 1.0 / np.array(seconds)
    solved = np.linalg.lstsq(np.array(rows) * weights[:, None], np.ones(len(rows)), rcond=None)[0]
    by_nodes = np.maximum.accumulate(np.maximum(solved[:-1], 1e-6))
    per_level = max(float(solved[-1]), 0.0)
    return TreeCosts(tuple(knots), tuple(by_nodes.tolist()), per_level, min(times[None]))


def _hats(nodes: int, knots: list[int]) -> list[float]:
    """The weight of each knot in a linear interpolation at `nodes`."""
    return [float(np.interp(nodes, knots, np.eye(len(knots))[at])) for at in range(len(knots))]


def _median_round(study: Study, engine: Engine) -> float:
    """Seconds from the end of a round to the end of the next, over full drafts."""
    ends: list[tuple[int, float]] = []
    engine.watch_rounds(lambda done: ends.append((len(done.drafts[0]), perf_counter())))
    study.run(engine, study.questions[:1], 0.0)
    largest = max(nodes for nodes, _ in ends)
    spans = [b[1] - a[1] for a, b in itertools.pairwise(ends) if b[0] == largest]
    return float(np.median(spans or [np.inf]))


def _plain_round(study: Study, engine: Engine) -> float:
    assert engine.tokenizer is not None, "loaded by name"
    prompt = engine.tokenizer.encode(study.questions[0].turns[0])[-1024:]
    stream = engine.stream_plain(list(prompt))
    for _, _ in zip(stream, range(32), strict=False):
        pass
    stream.close()
    stats = stream.completion.stats
    return stats.seconds / stats.num_target_forwards
