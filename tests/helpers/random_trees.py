"""Random trees of drafted tokens, grown in the cache the way an engine does it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forerun.core import Tree
from forerun.models.cpu import CpuCache, CpuModel
from tests.helpers.forwards import run


@dataclass
class Row:
    """One row of a cache: its committed tokens and the nodes of a tree behind them."""

    row: int
    committed: list[int]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def path(self, node: int) -> list[int]:
        return [] if node < 0 else [*self.path(self.parents[node]), node]

    def text(self, node: int) -> list[int]:
        """The tokens that a node stands behind, its own included."""
        return self.committed + [self.tokens[one] for one in self.path(node)]

    def draft(self, count: int, vocab: int, rng: random.Random) -> None:
        """Add nodes: each hangs from any earlier one or from the committed text."""
        for _ in range(count):
            self.parents.append(rng.randrange(-1, len(self.tokens)))
            self.tokens.append(rng.randrange(vocab))


def grow(model: CpuModel, cache: CpuCache, rows: list[Row], counts: list[int]) -> Tensor:
    """Run the last `counts[i]` nodes of each row in one pass, rows without any left out; logits
    [B, n, V]."""
    new = [(row, count) for row, count in zip(rows, counts, strict=True) if count]
    out = run(
        model,
        cache,
        [row.tokens[-count:] for row, count in new],
        [row.row for row, _ in new],
        trees=[Tree(tuple(row.parents)) for row, _ in new],
    )
    logits: Tensor = out.logits
    return logits


def check_nodes(model: CpuModel, rows: list[Row], counts: list[int], logits: Tensor) -> None:
    """The logits of every new node are those of plain decoding of its path."""
    some = [(row, count) for row, count in zip(rows, counts, strict=True) if count]
    for index, (row, count) in enumerate(some):
        alone = model.new_cache(1, len(row.committed) + len(row.tokens))
        for token in row.committed:
            run(model, alone, [[token]], logits_for="none")
        for new in range(count):
            alone.trim(0, len(row.committed))
            for node in row.path(len(row.tokens) - count + new):
                wanted = run(model, alone, [[row.tokens[node]]]).logits
            assert torch.equal(logits[index, new], wanted[0, 0]), (row, new)


def commit(cache: CpuCache, row: Row, rng: random.Random) -> None:
    """Keep the path to a random node, or nothing."""
    node = rng.randrange(-1, len(row.tokens))
    path = row.path(node)
    cache.keep(row.row, len(row.committed), path)
    row.committed, row.tokens, row.parents = row.text(node), [], []
    assert cache.length(row.row) == len(row.committed)
