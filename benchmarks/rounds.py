"""The cost of drafting alone and inside rounds, where a target's weights stream through the cache."""

from __future__ import annotations

import statistics
from time import perf_counter

from forerun import _native
from forerun.contracts import ChainRequest
from forerun.core import Batch, Drawing, Request
from forerun.models.cpu import CpuCache, CpuModel
from forerun.params import SamplingParams

_ROOM = 4


class Chains:
    """Draft chains after `context` tokens, repeatedly.

    Args:
        draft: the draft model.
        limit: tokens of a chain.
        context: tokens in the cache, without the one that a chain starts from.
        vocab_size: the target's.
        drawing: how tokens are picked.
    """

    def __init__(
        self, draft: CpuModel, limit: int, context: int, vocab_size: int, drawing: Drawing
    ) -> None:
        self.draft, self.limit, self.context, self.vocab_size = draft, limit, context, vocab_size
        self.cache: CpuCache = draft.new_cache(1, context + limit + _ROOM)
        _native.kernels.fill_cache(self.cache.native, 0, context)
        greedy = drawing is Drawing.GREEDY
        params = SamplingParams(temperature=0.0 if greedy else 1.0, max_tokens=None)
        text = Request(0, [1] * (context + 1), context + 1, params, seed=0, row=0)
        self._request = ChainRequest(0, [1], limit, drawing, text)

    def once(self) -> float:
        """Seconds per drafted token of one chain."""
        started = perf_counter()
        drafts = self.draft.draft_chains(self.cache, [self._request], self.vocab_size)
        seconds = perf_counter() - started
        self.cache.trim(0, self.context)
        return seconds / len(drafts[0])


def alone(draft: CpuModel, limit: int, context: int, count: int) -> list[float]:
    """Seconds per token of `count` long greedy chains, after a warm-up."""
    chains = Chains(draft, limit, context, draft.vocab_size, Drawing.GREEDY)
    chains.once()
    return [chains.once() for _ in range(count)]


def measure_rounds(
    target: CpuModel, draft: CpuModel, drafted: int, context: int, count: int, drawing: Drawing
) -> dict[str, float]:
    """Medians of `count` chains and target forwards in alternation, as in rounds.

    Returns:
        `draft`: seconds per drafted token; `target`: seconds of a forward of `drafted` + 1 tokens.
    """
    chains = Chains(draft, drafted, context, target.vocab_size, drawing)
    cache = target.new_cache(1, context + drafted + 1)
    _native.kernels.fill_cache(cache.native, 0, context)
    times: dict[str, list[float]] = {"draft": [], "target": []}
    for _ in range(count + 1):
        times["draft"].append(chains.once())
        started = perf_counter()
        target.forward(Batch.after(cache, [0], [range(1, drafted + 2)]), cache)
        times["target"].append(perf_counter() - started)
        cache.trim(0, context)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
