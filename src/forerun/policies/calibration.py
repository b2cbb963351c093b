"""Calibration: times of a target's forwards by new tokens and batch size, after a short text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
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
CONTEXT, PASSES = 16, 20


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
    """Median times by new tokens of each of `size` requests, and whether the repeats were disturbed.

    At least two numbers of tokens are timed, and all in turns as time allows, so that a slow moment
    affects all of them alike.
    """
    cache = target.new_cache(size, CONTEXT + max(tokens))
    text = [1 + place % (target.vocab_size - 1) for place in range(CONTEXT)]
    _run(target, cache, [text] * size)
    times: dict[int, list[float]] = {}
    started = perf_counter()
    for turn in range(1 + PASSES):
        # The first forward of each is a warm-up. Two distant numbers come first, in case time runs out.
        for n in sorted(tokens, key=lambda count: (count not in (tokens[0], tokens[3]), count)):
            done = len(times) if turn == 0 else sum(map(bool, times.values()))
            if done >= 2 and perf_counter() - started > seconds * (turn + 1) / PASSES:
                break
            spent = _run(target, cache, [text[:1] * n] * size)
            for row in range(size):
                cache.trim(row, CONTEXT)
            if n in times or spent > seconds / 4:
                times.setdefault(n, []).append(spent)
            times.setdefault(n, [])
    found = {n: median(values) for n, values in times.items() if values}
    spread = [found[n] / min(values) for n, values in times.items() if len(values) > 2]
    return found, bool(spread) and median(spread) > NOISY


def _run(target: CausalLM, cache: Cache, token_ids: Sequence[Sequence[int]]) -> float:
    started = perf_counter()
    output = target.forward(Batch.after(cache, list(range(len(token_ids))), token_ids), cache)
    assert output.logits is not None
    # Wait for devices that run asynchronously.
    output.logits[:, -1, 0].tolist()
    return perf_counter() - started
