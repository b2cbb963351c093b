"""Calibration: times of a target's forwards by new tokens and batch size, after a short text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from time import perf_counter

from forerun.contracts import Cache, CausalLM
from forerun.core import Batch
from forerun.costs.table import CostRow, CostTable

logger = logging.getLogger(__name__)

# Repeats of a forward were disturbed if their median exceeds their minimum by this factor.
NOISY = 1.3

SECONDS = 1.5
"""Approximate seconds of a calibration; forwards without time are derived from timed ones."""
TOKENS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17)
BATCHED_TOKENS = (1, 2, 3, 5, 9, 17)
CONTEXT, PASSES = 16, 60


@dataclass
class Calibrated:
    """Measured times of forwards.

    Args:
        table: the times.
        is_noisy: something else ran on the machine; the times are measured again when the target is
            next loaded.
    """

    table: CostTable
    is_noisy: bool = False


def calibrate(target: CausalLM, rows: int, seconds: float = SECONDS) -> Calibrated:
    """Time forwards of a target.

    Args:
        target: a target with any weights.
        rows: most requests at once; half of that and one request are timed too.
        seconds: approximate time to spend.
    """
    started = perf_counter()
    times, is_noisy = _timed(target, 1, TOKENS, seconds / (1 if rows == 1 else 2))
    table = CostTable.from_rows((n, 1, 0, value) for n, value in times.items())
    measured: list[CostRow] = [(n, 1, 0, table.seconds(n)) for n in TOKENS]
    sizes = sorted({size for size in (2, 4, rows // 2, rows) if 1 < size <= rows})
    for place, size in enumerate(sizes):
        left = (seconds - (perf_counter() - started)) / (len(sizes) - place)
        times, noise = _timed(target, size, BATCHED_TOKENS, left) if left > 0 else ({}, False)
        is_noisy |= noise
        if times:
            part = CostTable.from_rows((n, size, 0, value) for n, value in times.items())
            measured += [(n, size, 0, part.seconds(n, size)) for n in TOKENS]
        else:
            # In one request the same number of tokens costs about as much.
            measured += [(n, size, 0, table.seconds(n * size)) for n in TOKENS]
    logger.info("timed %s in %.1f s", target.name, perf_counter() - started)
    return Calibrated(CostTable.from_rows(measured), is_noisy)


def _timed(
    target: CausalLM, size: int, tokens: Sequence[int], seconds: float
) -> tuple[dict[int, float], bool]:
    """Typical times by new tokens of each of `size` requests, and whether something else disturbed them.

    At least two numbers of tokens are timed, and all in turns as time allows.
    """
    cache = target.new_cache(size, CONTEXT + max(tokens))
    chance = Random(0)
    # Equal tokens would all call the same experts of a mixture.
    drawn = partial(chance.choices, range(target.vocab_size))
    _run(target, cache, [drawn(k=CONTEXT) for _ in range(size)])
    turns: list[dict[int, float]] = []
    started, warm = perf_counter(), set[int]()
    # Two distant numbers come first, in case time runs out.
    order = sorted(tokens, key=lambda count: (count not in (tokens[0], tokens[3]), count))
    for turn in range(1 + PASSES):
        turns.append({})
        for n in order:
            done = warm if turn == 0 else set[int]().union(*turns)
            if len(done) >= 2 and perf_counter() - started > seconds * (turn + 1) / PASSES:
                break
            spent = _run(target, cache, [drawn(k=n) for _ in range(size)])
            for row in range(size):
                cache.trim(row, CONTEXT)
            # The first forward of each is a warm-up.
            if n in warm or spent > seconds / 4:
                turns[-1][n] = spent
            warm.add(n)
        if turn:
            # What a forward leaves in the processor's caches must not always meet the same next one.
            chance.shuffle(order)
    found = typical(turns)
    least = {n: min(turn[n] for turn in turns if n in turn) for n in found}
    disturbed = bool(found) and median(found[n] / least[n] for n in found) > NOISY
    return (convex(found) if disturbed else found), disturbed


def typical(turns: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Median times by key, each relative to its turn, so that a slow turn slows no key more than others.

    It is a step of Tukey's median polish.

    Args:
        turns: times by key, measured one after the other.
    """
    turns = [turn for turn in turns if turn]
    medians = {
        key: median(turn[key] for turn in turns if key in turn) for key in set().union(*turns)
    }
    if not all(medians.values()):
        return medians
    levels = [median(turn[key] / medians[key] for key in turn) for turn in turns]
    return {
        key: median(
            turn[key] / level for turn, level in zip(turns, levels, strict=True) if key in turn
        )
        for key in medians
    }


def convex(times: Mapping[int, float]) -> dict[int, float]:
    """The highest convex curve below times by number of tokens: single disturbed times do not raise it."""
    corners: list[int] = []
    for n in sorted(times):
        while len(corners) > 1 and _slope(times, *corners[-2:]) >= _slope(times, corners[-2], n):
            corners.pop()
        corners.append(n)
    curve = {}
    for n in times:
        before = max(corner for corner in corners if corner <= n)
        after = min(corner for corner in corners if corner >= n)
        rise = _slope(times, before, after) if after > before else 0.0
        curve[n] = times[before] + rise * (n - before)
    return curve


def _slope(times: Mapping[int, float], low: int, high: int) -> float:
    return (times[high] - times[low]) / (high - low)


def _run(target: CausalLM, cache: Cache, token_ids: Sequence[Sequence[int]]) -> float:
    started = perf_counter()
    output = target.forward(Batch.after(cache, list(range(len(token_ids))), token_ids), cache)
    assert output.logits is not None
    # Wait for devices that run asynchronously.
    output.logits[:, -1, 0].tolist()
    return perf_counter() - started
