"""Base of caches that evict: their methods count all tokens of the text, but fewer have slots.

All layers and heads of a row hold equally many tokens, but not the same ones. Keys keep the
rotations of their original positions. Tokens are evicted when a request continues from committed
text alone: after its prompt, then at fixed intervals (`until_eviction`), wherever rounds begin and
whatever was drafted in them. So a rejected token is never counted and never takes another token's
place, and drafts change nothing.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor

from forerun.compression import Compression
from forerun.compression.methods import Held, Queries, Rotate
from forerun.core import View
from forerun.errors import CacheError
from forerun.interrupts import held_back
from forerun.kv_cache.fit import check_row

# Queries that are counted at once. The limits of a piece depend on the text alone; otherwise drafts would
# change the rounding of sums.
PIECE = 256
# Slots, or logged queries, by which memory grows.
STEP = 256


class Evicting(ABC):
    """A cache that evicts some of its tokens; see `forerun.contracts.Evicts`.

    The subclass decides in which slots keys and values are stored.

    Args:
        rows: rows of the cache.
        shape: layers, key and value heads, size of one head.
        compression: decides which tokens stay.
        rotate: the model's rotary embedding.
        new_log: makes an empty log of a row's queries.
    """

    def __init__(
        self,
        rows: int,
        shape: tuple[int, int, int],
        compression: Compression,
        rotate: Rotate,
        new_log: Callable[[], QueryLog],
    ) -> None:
        self.compression, self.method = compression, compression.make()
        self._rotate, self._new_log = rotate, new_log
        num_layers, self._kv_heads, self._head_dim = shape
        self.dropped = [0] * rows
        """Number of tokens that each row has lost, the same in all layers."""
        self._due: list[int | None] = [None] * rows
        """Number of tokens at which each row evicts next; None until its prompt has been read."""
        self._logs = [new_log() for _ in range(rows)]
        self._counted = [0] * rows
        """Number of tokens of each row that the method has counted."""
        self._states: list[list[Tensor | None]] = [[None] * num_layers for _ in range(rows)]
        """The method's state for the counted tokens, by row and layer."""

    @abstractmethod
    def num_slots(self, row: int, layer: int | None = None) -> int:
        """Number of tokens that a row holds in a layer; in its shortest layer if None."""

    @abstractmethod
    def _keep_slots(self, row: int, start: int, path: Sequence[int]) -> None:
        """Keep the slots before `start` and, of those from `start` on, the ones at `path`."""

    @abstractmethod
    def _trim_slots(self, row: int, length: int, layers: range | None) -> None:
        """Forget the slots after the first `length`."""

    @abstractmethod
    def _evict_slots(self, row: int, stay: Tensor) -> None:
        """Keep only the given slots in each layer and head, int64 [layers, kv_heads, k], rising."""

    @abstractmethod
    def _numbers(self, layer: int, row: int, count: int, values: bool) -> Tensor:
        """Keys or values of the first `count` slots, [kv_heads, count, head_dim]."""

    def copy(self) -> Self:
        """A copy of the cache; see `forerun.contracts.Evicts`."""
        # The rotation is shared and not copied, because it may belong to the model.
        return copy.deepcopy(self, {id(self._rotate): self._rotate})

    def length(self, row: int, layer: int | None = None) -> int:
        """Number of tokens of a row, as `forerun.contracts.Cache` says."""
        return self.num_slots(row, layer) + self.dropped[row]

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Keep some tokens of a row, as `forerun.contracts.Cache` says."""
        check_row(row, len(self.dropped))
        self._keep_slots(row, length - self.dropped[row], path)
        self._logs[row].keep(length, path)

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the last tokens of a row, as `forerun.contracts.Cache` says.

        Raises:
            CacheError: also for a part of the committed tokens by which others were evicted: trim
                all or none.
        """
        check_row(row, len(self.dropped))
        if length == 0 and layers is None:
            self._empty(row)
            return
        committed = self._committed(row)
        if 0 <= length < committed:
            raise CacheError(
                f"row {row} has committed {committed} tokens, by which others are evicted, and cannot be "
                f"trimmed to {length}; trim it to 0 and run the text again."
            )
        # Slots first: queries of tokens that are no longer held do no harm.
        self._trim_slots(row, length - self.dropped[row] if length > 0 else length, layers)
        self._logs[row].cut(length, layers)

    def _committed(self, row: int) -> int:
        """Number of tokens that cannot be taken back one by one."""
        due, log = self._due[row], self._logs[row]
        evicted_at = 0 if due is None else due - self.compression.kv_interval
        return max(evicted_at, self._counted[row], log.first if self.logs(row) else 0)

    def _empty(self, row: int) -> None:
        log = self._new_log()
        states: list[Tensor | None] = [None] * len(self._states[row])
        with held_back():
            self._trim_slots(row, 0, None)
            self._logs[row], self._states[row], self._counted[row] = log, states, 0
            self.dropped[row], self._due[row] = 0, None

    def check_view(self, view: View | None) -> None:
        """Refuse a view, which would read only a part of the text.

        Raises:
            CacheError: for a view.
        """
        if view is not None:
            raise CacheError(
                "a cache that evicts holds other tokens in each head, so that no part of the text can be "
                "read alone; leave kv_method out, or use another method than self_sparse."
            )

    def logs(self, row: int) -> bool:
        """True if the method will read queries of further tokens of a row."""
        over = self._due[row] is not None and self.compression.kv_budget is None
        return not over and (self.method.counts or self.method.observed > 0)

    def log(self, row: int, layers: range, start: int, queries: Tensor) -> None:
        """Log queries [layers, heads, n, head_dim], before their rotation, of the tokens from `start` on."""
        self._logs[row].write(layers, start, queries)

    def until_eviction(self, row: int) -> int | None:
        """Number of tokens before the next eviction; see `forerun.contracts.Evicts`."""
        due = self._due[row]
        return None if due is None or self.compression.kv_budget is None else due - self.length(row)

    def commit(self, row: int) -> None:
        """Note the tokens that a row holds now; see `forerun.contracts.Evicts`."""
        length = self.length(row)
        while self.method.counts and self._counted[row] + PIECE <= length:
            self._count(row, self._counted[row] + PIECE)
        self._forget_queries(row, length)

    def evict(self, row: int) -> None:
        """Evict the tokens that are due; see `forerun.contracts.Evicts`."""
        length, due = self.length(row), self._due[row]
        if due is not None and length != due:
            if length - self._logs[row].first >= self.method.observed + 2 * PIECE:
                self.commit(row)
            return
        count = self.num_slots(row)
        stay = self.compression.kept(count, due is None)
        chosen, states = None, self._states[row]
        if stay < count:
            chosen = self._chosen(row, length, stay)
            pairs = zip(self._states[row], chosen, strict=True)
            states = [self.method.keep(state, slots) for state, slots in pairs]
        with held_back():
            if chosen is not None:
                self._evict_slots(row, chosen)
                self._states[row] = states
                self.dropped[row] += count - stay
            if due is None or self.compression.kv_budget is not None:
                self._due[row] = length + self.compression.kv_interval
        self._forget_queries(row, length)

    def _count(self, row: int, end: int) -> None:
        """Let the method count the queries of committed tokens up to `end`."""
        start, states = self._counted[row], self._states[row]
        made = [
            self.method.count(
                self._held(row, layer, end),
                self._logs[row].between(layer, start, end, self.dropped[row]),
                state,
            )
            for layer, state in enumerate(states)
        ]
        with held_back():
            self._states[row], self._counted[row] = made, end

    def _forget_queries(self, row: int, length: int) -> None:
        """Forget the queries of committed tokens that the method no longer needs."""
        log = self._logs[row]
        before = length
        if self.logs(row):
            before -= self.method.observed
            before = min(before, self._counted[row]) if self.method.counts else before
        log.forget(before)

    def _held(self, row: int, layer: int, length: int) -> Held:
        """The first `length` tokens as one layer holds them."""
        dropped, log = self.dropped[row], self._logs[row]
        count = length - dropped
        first = max(length - self.method.observed, log.first)
        return Held(
            (self._kv_heads, count, self._head_dim),
            partial(self._numbers, layer, row, count, False),
            log.between(layer, first, length, dropped),
            self._rotate,
        )

    def _chosen(self, row: int, length: int, count: int) -> Tensor:
        """Slots of the tokens that stay, int64 [layers, kv_heads, count], rising."""
        while self.method.counts and self._counted[row] < length:
            self._count(row, min(self._counted[row] + PIECE, length))
        scores = torch.stack(
            [
                self.method.score(self._held(row, layer, length), state)
                for layer, state in enumerate(self._states[row])
            ]
        )
        scores[..., : self.compression.kv_sinks] = torch.inf
        scores[..., scores.shape[-1] - self.compression.kv_recent :] = torch.inf
        # Stable, so that among equals the newest stay.
        order = scores.argsort(dim=-1, stable=True)
        return order[..., order.shape[-1] - count :].sort(dim=-1).values


class QueryLog:
    """Queries of the newest tokens of a row, before their rotation; indexed by tokens of the text.

    Args:
        shape: layers, query heads, size of one head.
        dtype, device: of queries.

    Attributes:
        first: number of tokens before the first logged one.
        ends: number of tokens up to and including the last logged one, by layer.
    """

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        layers, heads, size = shape
        self.ends = [0] * layers
        self.first = 0
        self._vectors = torch.empty(layers, heads, 0, size, dtype=dtype, device=device)

    def write(self, layers: range, start: int, queries: Tensor) -> None:
        """Log queries [layers, heads, n, head_dim] of the tokens from `start` on.

        They replace logged queries of these and later tokens.
        """
        assert start <= min(self.ends[layers.start : layers.stop]), "a gap"
        end = start + queries.shape[2]
        self._make_room(end)
        part = slice(start - self.first, end - self.first)
        self._vectors[layers.start : layers.stop, :, part] = queries
        for layer in layers:
            self.ends[layer] = end

    def cut(self, end: int, layers: range | None = None) -> None:
        """Forget the queries after the first `end` tokens."""
        for layer in range(len(self.ends)) if layers is None else layers:
            self.ends[layer] = min(self.ends[layer], end)

    def keep(self, length: int, path: Sequence[int]) -> None:
        """Keep the queries of the first `length` tokens and, after them, those at `path`, which ascends."""
        staying = [token for token in path if length + token < max(self.ends)]
        if staying != list(range(len(staying))):
            start = length - self.first
            index = torch.tensor(staying, device=self._vectors.device) + start
            self._vectors[:, :, start : start + len(staying)] = self._vectors[:, :, index]
        for layer, end in enumerate(self.ends):
            if end > length:
                self.ends[layer] = length + sum(length + token < end for token in staying)

    def forget(self, before: int) -> None:
        """Forget the queries of the first `before` tokens."""
        drop = before - self.first
        if drop > 0:
            left = max(max(self.ends) - before, 0)
            vectors = self._vectors[:, :, drop : drop + left].clone()
            with held_back():
                self._vectors, self.first = vectors, before

    def between(self, layer: int, start: int, end: int, dropped: int) -> Queries:
        """Queries of the tokens from `start` to `end`, in a row that has lost `dropped` tokens."""
        positions = torch.arange(start, end, device=self._vectors.device)
        part = slice(start - self.first, end - self.first)
        return Queries(self._vectors[layer, :, part], positions, positions - dropped)

    def _make_room(self, end: int) -> None:
        size, wanted = self._vectors.shape[2], end - self.first
        if wanted > size:
            shape = list(self._vectors.shape)
            shape[2] = -(-wanted // STEP) * STEP
            made = self._vectors.new_empty(shape)
            made[:, :, :size] = self._vectors
            self._vectors = made
