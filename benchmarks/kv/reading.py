"""One row of a target's cache, read and gone on with as the engine does, but along a given text."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from forerun.compression import Compression
from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.core.batch import LogitsFor
from forerun.engine.settings import new_cache
from forerun.models.running import PREFILL_CHUNK
from forerun.sampling import log_probs

# Tokens of a cache that shows how many bytes one takes; it is never written to.
_MANY = 1024


class Score(NamedTuple):
    """Scores of given tokens by a model.

    Args:
        nll: minus the log probability of each, float64 [n].
        hits: whether each is the most likely one, bool [n].
    """

    nll: Tensor
    hits: Tensor


class TimedToken(NamedTuple):
    """A token that was run alone, with the seconds of the eviction before it and of the forward."""

    score: Score
    evicting: float
    running: float


class CacheReading:
    """A row of a cache that holds a prompt, but for its newest token.

    Tokens are evicted where the engine does it: when the prompt has been read, then when `until_eviction`
    says so; no forward goes beyond that, as no draft does.

    Args:
        target: the model.
        compression: of its cache.
        capacity: tokens that will be run at most.
    """

    def __init__(self, target: CausalLM, compression: Compression, capacity: int) -> None:
        self.target = target
        self.cache, self.evicts = new_cache(target, 1, capacity, compression)
        self.newest = -1

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of the tokens that are held, without what is allocated for others."""
        held = self.cache.length(0) - (0 if self.evicts is None else self.evicts.dropped[0])
        many = cast(Any, self.target.new_cache(1, _MANY))
        return int(held * many.nbytes / _MANY)

    def read(self, token_ids: Sequence[int]) -> None:
        """Go on with a prompt, in chunks."""
        pending = [*([self.newest] if self.newest >= 0 else []), *token_ids]
        self.newest = pending.pop()
        for start in range(0, len(pending), PREFILL_CHUNK):
            if self.evicts is not None:
                self.evicts.commit(0)
            self._run(pending[start : start + PREFILL_CHUNK], "none")
        if self.evicts is not None:
            self.evicts.commit(0)

    @contextmanager
    def branch(self) -> Iterator[CacheReading]:
        """Context manager with the same prompt, to go on otherwise while the block runs.

        A cache that evicts is copied, as nothing that it has evicted comes back.
        """
        if self.evicts is not None:
            other = copy.copy(self)
            other.cache = other.evicts = self.evicts.copy()
            yield other
            return
        newest, length = self.newest, self.cache.length(0)
        try:
            yield self
        finally:
            self.newest = newest
            self.cache.trim(0, length)

    def score(self, token_ids: Sequence[int]) -> Score:
        """Scores of given tokens behind the prompt, which they belong to afterwards."""
        left = list(token_ids)
        scores: list[Score] = []
        while left:
            self._evict()
            most = None if self.evicts is None else self.evicts.until_eviction(0)
            count = min(len(left), PREFILL_CHUNK, len(left) if most is None else most)
            scores.append(self._score(left[:count]))
            left = left[count:]
        return Score(*(torch.cat(parts) for parts in zip(*scores, strict=True)))

    def step(self, token: int) -> TimedToken:
        """Score of one token, and the seconds that it took."""
        start = perf_counter()
        self._evict()
        middle = perf_counter()
        score = self._score([token])
        return TimedToken(score, middle - start, perf_counter() - middle)

    def _evict(self) -> None:
        if self.evicts is not None:
            self.evicts.evict(0)

    def _score(self, token_ids: list[int]) -> Score:
        pending = [self.newest, *token_ids]
        self.newest = pending.pop()
        logits = self._run(pending, "all")
        assert logits is not None
        wanted = torch.tensor(token_ids, device=logits.device)
        rows = log_probs(logits, logits.new_zeros(0, dtype=torch.float64), "raw")
        nll = -rows.gather(-1, wanted[:, None])[:, 0]
        return Score(nll.cpu(), (logits.argmax(-1) == wanted).cpu())

    def _run(self, token_ids: list[int], logits_for: LogitsFor) -> Tensor | None:
        batch = Batch.after(self.cache, [0], [token_ids], logits_for=logits_for)
        logits = self.target.forward(batch, self.cache).logits
        return None if logits is None else logits[0]
