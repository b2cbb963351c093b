"""Costs of rounds, fitted to timed ones: by stage, drafted tokens, batch size and context."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from benchmarks.rivals.costs import StageCosts
from benchmarks.rivals.records import PromptTiming, RecordedOutput, Records, RoundTiming
from forerun.costs.table import CostTable
from forerun.errors import ConfigError

# Seconds that no stage takes less than: tables hold no zeros.
_LEAST = 1e-9
# Rounds of a number of nodes, below which they are told from others by interpolation alone.
_FEW = 3
# Residuals beyond so many times their median are other work on the machine.
_OUTLIER, _PASSES = 4.0, 3

Sample = tuple[float, float, float]
"""Tokens verified, context, seconds."""


def fit_costs(
    timings: Sequence[PromptTiming], outputs: Sequence[RecordedOutput] = ()
) -> StageCosts:
    """The costs of a candidate, from its timings at any batch sizes and its recorded outputs.

    Raises:
        ConfigError: for no timed rounds.
    """
    if not any(timing.rounds and timing.plain for timing in timings):
        raise ConfigError(
            "no rounds were timed; time a prompt with at least a few tokens of output."
        )
    by_batch: dict[int, list[PromptTiming]] = {}
    for timing in timings:
        by_batch.setdefault(timing.batch_size, []).append(timing)
    grid = _Grid.of(timings)
    plain = {
        b: [(1.0, context, seconds) for t in group for context, seconds in t.plain]
        for b, group in by_batch.items()
    }
    plain_table = replace(grid, tokens=(1,)).table(plain)
    rounds = {
        b: [_at_usual_speed(timed, plain_table) for t in group for timed in t.rounds]
        for b, group in by_batch.items()
    }
    draft = grid.table({b: _samples(group, "draft") for b, group in rounds.items()})
    host = {b: statistics.median(timed.host for timed in group) for b, group in rounds.items()}
    single = by_batch[min(by_batch)]
    return StageCosts(
        draft=draft,
        target=grid.table({b: _samples(group, "target") for b, group in rounds.items()}),
        verify=grid.table({b: _samples(group, "verify") for b, group in rounds.items()}),
        plain=plain_table,
        host=CostTable.from_rows((1, b, 0, max(value, _LEAST)) for b, value in host.items()),
        first_draft=_first_draft(draft, single),
        prefill=_prefill(single, outputs),
        plain_prefill=statistics.median(
            (timing.plain_prefill or 1.0) / (timing.prefill or 1.0) for timing in single
        ),
    )


def costs_of(records: Records, candidate: str) -> StageCosts:
    """The costs of a recorded candidate.

    Raises:
        ConfigError: where no rounds of it were timed.
    """
    timings = [timing for timing in records.timings.values() if timing.candidate == candidate]
    return fit_costs(timings, records.of(candidate))


def plain_seconds(outputs: Sequence[RecordedOutput], costs: StageCosts) -> float:
    """Seconds of plain decoding of outputs side by side, prompts included."""
    prompts = [len(output.prompt_ids) for output in outputs]
    seconds = sum(costs.plain_prompt(prompt) for prompt in prompts)
    for position in range(max(map(len, outputs))):
        running = [p for p, output in zip(prompts, outputs, strict=True) if position < len(output)]
        context = sum(running) / len(running) + position
        seconds += costs.plain_seconds(len(running), context)
    return seconds


@dataclass(frozen=True)
class _Grid:
    """The points of the tables."""

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]

    @classmethod
    def of(cls, timings: Sequence[PromptTiming]) -> _Grid:
        nodes = [timed.nodes for timing in timings for timed in timing.rounds]
        contexts = [timed.context for timing in timings for timed in timing.rounds]
        most = int(max(nodes, default=0)) + 1
        tokens = {1, most, *(n for n in (2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 33, 65) if n < most)}
        ends = {int(min(contexts)), int(max(contexts)) + 1}
        return cls(tuple(sorted(tokens)), tuple(sorted(ends)))

    def table(self, samples: dict[int, list[Sample]]) -> CostTable:
        """A table fitted to samples by batch size; nearly zero without samples."""
        rows = []
        for batch_size, group in samples.items():
            fit = _Fit.to(group)
            rows += [
                (n, batch_size, context, max(fit.seconds(n, context), _LEAST))
                for n in self.tokens
                for context in self.contexts
            ]
        return CostTable.from_rows(rows)


@dataclass(frozen=True)
class _Fit:
    """Seconds that are linear between knots of tokens, and rise with the context."""

    knots: tuple[float, ...] = (1.0,)
    base: tuple[float, ...] = (0.0,)
    per_context: float = 0.0
    per_context_and_token: float = 0.0

    def seconds(self, tokens: float, context: float) -> float:
        rising = self.per_context + self.per_context_and_token * tokens
        return float(np.interp(tokens, self.knots, self.base)) + rising * context

    @classmethod
    def to(cls, samples: Sequence[Sample]) -> _Fit:
        """Nonnegative least squares of relative errors, without what other work has slowed down."""
        positive = np.array([sample for sample in samples if sample[2] > 0])
        if not len(positive):
            return cls()
        knots = _knots(positive[:, 0])
        for _ in range(_PASSES):
            parts = _parts(positive, knots)
            solved, _norm = nnls(parts / positive[:, 2:], np.ones(len(positive)))
            errors = np.abs(parts @ solved / positive[:, 2] - 1.0)
            fine = errors <= _OUTLIER * max(float(np.median(errors)), 1e-3)
            if fine.all() or fine.sum() < len(knots) + 2:
                break
            positive = positive[fine]
        base = tuple(float(value) for value in solved[:-2])
        return cls(knots, base, float(solved[-2]), float(solved[-1]))


def _knots(tokens: NDArray[np.float64]) -> tuple[float, ...]:
    """The numbers of tokens that were seen often enough, and the ends."""
    values, counts = np.unique(tokens, return_counts=True)
    often = {float(v) for v, count in zip(values, counts, strict=True) if count >= _FEW}
    if len(often) > 16:  # A tree whose size varies.
        often = {float(v) for v in np.quantile(tokens, np.linspace(0, 1, 6))}
    # A last round that is cut to one token drafts nothing: it must not count as the shortest draft.
    return tuple(sorted({*often, float(values[0]), float(values[-1])}))


def _parts(samples: NDArray[np.float64], knots: tuple[float, ...]) -> NDArray[np.float64]:
    """Coefficient of each parameter in each sample."""
    tokens, contexts = samples[:, 0], samples[:, 1]
    hats = [np.interp(tokens, knots, row) for row in np.eye(len(knots))]
    return np.stack([*hats, contexts, contexts * tokens], axis=1)


def _at_usual_speed(timed: RoundTiming, plain: CostTable) -> RoundTiming:
    """A round scaled to a machine on which plain rounds take their usual time."""
    if not timed.beside:
        return timed
    factor = plain.seconds(1, timed.batch_size, timed.context) / timed.beside
    stages = {name: factor * getattr(timed, name) for name in ("draft", "target", "verify", "host")}
    return replace(timed, **stages)


def _samples(rounds: Sequence[RoundTiming], stage: str) -> list[Sample]:
    """Samples of a stage; of drafting only where it was asked for and no prompt went through the drafter."""
    return [
        (timed.nodes + 1.0, timed.context, getattr(timed, stage))
        for timed in rounds
        if stage != "draft" or (timed.drafted and not timed.first)
    ]


def _first_draft(draft: CostTable, timings: Sequence[PromptTiming]) -> float:
    """Seconds a token that first drafts take longer than others; the median."""
    longer = [
        (timed.draft - draft.seconds(timed.nodes + 1, timed.batch_size, timed.context))
        / (timed.context * timed.batch_size)
        for timing in timings
        for timed in timing.rounds
        if timed.first
    ]
    return max(statistics.median(longer), 0.0) if longer else 0.0


def _prefill(
    timings: Sequence[PromptTiming], outputs: Sequence[RecordedOutput]
) -> tuple[float, float]:
    """Seconds a token of a prompt, and a token and token before it."""
    samples = [(timing.prompt_tokens, timing.prefill) for timing in timings]
    samples += [(len(output.prompt_ids), output.prefill_seconds) for output in outputs]
    positive = np.array([sample for sample in samples if sample[1] > 0])
    if not len(positive):
        return 0.0, 0.0
    parts = np.stack([positive[:, 0], positive[:, 0] ** 2], axis=1) / positive[:, 1:]
    per_token, per_pair = nnls(parts, np.ones(len(positive)))[0]
    return float(per_token), float(per_pair)
