"""The cache of a draft model, which heals itself: nobody has to tell it what was accepted.

Before drafting, a row goes back to what it shares with its sequence, along whichever path of the
last draft was accepted, and runs what is missing. Prompts are run at the first draft, so that a
request that never speculates never pays for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forerun.contracts import Cache, CausalLM
from forerun.core import Batch, Tree
from forerun.models.running import prefill

# Rows that miss more tokens than this run their prefill alone, so that nobody pays for its padding.
LARGEST_SHARED_CATCH_UP = 16


@dataclass
class _Row:
    """What one row of the cache holds: the text, then nodes of a draft in the order they were run."""

    request_id: int = -1
    token_ids: list[int] = field(default_factory=list)
    node_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    """Each node and those above it."""

    def grown(self, token_ids: Sequence[int], parents: Sequence[int]) -> _Row:
        """The row with some nodes more."""
        paths = list(self.paths)
        for parent in parents:
            paths.append([*(paths[parent] if parent >= 0 else []), len(paths)])
        nodes, above = [*self.node_ids, *token_ids], [*self.parents, *parents]
        return _Row(self.request_id, self.token_ids, nodes, above, paths)

    def path_along(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """The nodes that follow the text at most `limit` tokens beyond what is held of it."""
        path: list[int] = []
        at = -1
        for token in token_ids[len(self.token_ids) : len(self.token_ids) + limit]:
            found = [
                node
                for node, parent in enumerate(self.parents)
                if parent == at and self.node_ids[node] == token
            ]
            if not found:
                break
            at = found[0]
            path.append(at)
        return path


class DraftCache:
    """Keys and values of a draft model for the sequences that it drafts for.

    Args:
        model: the draft model.
        rows: as many as the target's cache has.
        capacity: tokens a row, drafted ones included.
        tree_slots: slots for nodes beyond that, where trees are drafted.
    """

    def __init__(self, model: CausalLM, rows: int, capacity: int, tree_slots: int = 0) -> None:
        self.model = model
        self.capacity = min(capacity, model.max_context)
        self.cache: Cache = model.new_cache(rows, self.capacity + tree_slots)
        self._rows = [_Row() for _ in range(rows)]

    def missing(self, row: int, request_id: int, token_ids: list[int]) -> list[int]:
        """Cut a row back to what it shares with a text; the tokens that it lacks, the last one at
        least and few enough to be run beside those of other rows.

        Args:
            row: of the cache; it is emptied if it holds another request.
            request_id: whose text it is.
            token_ids: the text, in the draft model's vocabulary.
        """
        held = self._row_of(row, request_id)
        shared = self._shared(held, token_ids)
        path = []
        if shared == len(held.token_ids):
            path = held.path_along(token_ids, len(token_ids) - 1 - shared)
        if path == list(range(len(path))):
            self.cache.trim(row, shared + len(path))
        else:
            self.cache.keep(row, shared, path)
        # An interrupted run may have left less than was taken down.
        have = min(shared + len(path), self.cache.length(row))
        self._rows[row] = _Row(request_id, token_ids[:have])
        rest = token_ids[have:]
        if len(rest) > LARGEST_SHARED_CATCH_UP:
            prefill(self.model, self.cache, row, rest[:-1])
            self._rows[row].token_ids += rest[:-1]
            rest = rest[-1:]
        return rest

    def catch_up(self, rows: list[int], missing: list[list[int]]) -> Tensor:
        """Run what `missing` has returned; logits after the last tokens, [B, V]."""
        batch = Batch.after(self.cache, rows, missing, logits_for="last")
        output = self.model.forward(batch, self.cache)
        self.hold(rows, missing)
        assert output.logits is not None
        return output.logits[:, 0]

    def hold(self, rows: list[int], token_ids: Sequence[Sequence[int]]) -> None:
        """Take down tokens of the text that someone has run."""
        for row, tokens in zip(rows, token_ids, strict=True):
            self._rows[row].token_ids += tokens

    def hold_chain(self, row: int, token_ids: Sequence[int]) -> None:
        """Take down a drafted chain that someone has run."""
        self._rows[row] = self._rows[row].grown(token_ids, range(-1, len(token_ids) - 1))

    def extend(
        self, rows: list[int], token_ids: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
    ) -> Tensor:
        """Run drafted nodes, several a row.

        Args:
            rows: of the cache.
            token_ids: of the nodes, by row.
            parents: of the nodes, by row: the how-manieth drafted node of the row is above it,
                counted in the order in which they were run; -1 for the text.

        Returns:
            Logits after each node, [N, V], row after row.
        """
        grown = [
            self._rows[row].grown(*new)
            for row, new in zip(rows, zip(token_ids, parents, strict=True), strict=True)
        ]
        trees = [Tree(tuple(held.parents)) for held in grown]
        batch = Batch.after(self.cache, rows, token_ids, trees=trees)
        output = self.model.forward(batch, self.cache)
        # Not before they have been run: a forward may be interrupted.
        for row, held in zip(rows, grown, strict=True):
            self._rows[row] = held
        assert output.logits is not None
        counts = [len(tokens) for tokens in token_ids]
        if len(rows) == 1:
            return output.logits[0]
        return torch.cat([output.logits[i, :count] for i, count in enumerate(counts)])

    def release(self, row: int, request_id: int) -> None:
        """Forget a request."""
        if self._rows[row].request_id == request_id:
            self._rows[row] = _Row()
            self.cache.trim(row, 0)

    def _row_of(self, row: int, request_id: int) -> _Row:
        if self._rows[row].request_id != request_id:
            self._rows[row] = _Row(request_id)
            self.cache.trim(row, 0)
        return self._rows[row]

    @staticmethod
    def _shared(held: _Row, token_ids: list[int]) -> int:
        """How many tokens of the row's text are the text's, at least one being left to run."""
        limit = min(len(held.token_ids), len(token_ids) - 1)
        if held.token_ids[:limit] == token_ids[:limit]:
            return limit
        return next(at for at in range(limit) if held.token_ids[at] != token_ids[at])
