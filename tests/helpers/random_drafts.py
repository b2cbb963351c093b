"""Random drafts and rows of logits, for every rule, under several samplers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from forerun.core import NO_DRAFT, Draft, Request, Tree
from forerun.params import SamplingParams
from forerun.sampling import Prefix, draw, warp

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=5, min_p=0.05),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.6),
]
# Each draft is a tree or a chain, with the rows that it was drawn from or without.
KINDS = {
    "drawn trees": ("token", True, True),
    "trees of point masses": ("token", True, False),
    "drawn chains": ("token", False, True),
    "traversed trees": ("traversal", True, True),
    "traversed chains": ("traversal", False, True),
    "coupled chains": ("coupled", False, False),
    "coupled trees": ("coupled", True, False),
}
LARGEST = 6


def target_logits(vocab_size: int, count: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Rows [count, V], peaked or flat, some on a grid with ties, some with excluded tokens."""
    source = torch.Generator().manual_seed(1000 * vocab_size + seed)
    rows = torch.randn(count, vocab_size, generator=source, dtype=dtype) * (1 + 2 * (seed % 3))
    if seed % 4 == 1:
        rows = rows.round()
    if seed % 2:
        kept = torch.randint(vocab_size, (count, 1), generator=source)
        values = rows.gather(1, kept)
        rows[torch.rand(rows.shape, generator=source) < 0.4] = -torch.inf
        rows.scatter_(1, kept, values)
    return rows


def drafted(
    parents: tuple[int, ...], logits: Tensor, request: Request, with_rows: bool, seed: int
) -> Draft:
    """A draft of tokens that the target takes now and then, drawn from rows near its own."""
    if not parents:
        return NO_DRAFT
    source = torch.Generator().manual_seed(seed)
    near = logits[[parent + 1 for parent in parents]].float()
    near = near + torch.randn(near.shape, generator=source)
    # Also what the target excludes.
    near = torch.where(near.isinf() & (torch.rand(near.shape, generator=source) < 0.2), 0.0, near)
    rows = warp(near, [Prefix(request)] * len(parents))
    tokens = draw(rows, torch.rand(len(parents), generator=source).tolist())
    return Draft(Tree(parents), tuple(tokens), rows if with_rows else None)


def cases(
    kind: str, vocab_size: int, dtype: torch.dtype, seeds: int
) -> Iterator[tuple[str, Draft, Tensor, Request]]:
    """Rule, draft, logits and request, for all parameters and every size of a draft."""
    rule, tree, with_rows = KINDS[kind]
    for index, params in enumerate(PARAMS):
        for seed in range(seeds):
            source = random.Random(1000 * index + seed)
            size = seed % (LARGEST + 1)
            branches = [source.randint(-1, node - 1) for node in range(size)]
            parents = tuple(branches if tree else range(-1, size - 1))
            logits = target_logits(vocab_size, size + 1, seed, dtype)
            request = Request(0, [1, 0, 1], 3, params, source.randrange(-(2**63), 2**63))
            yield rule, drafted(parents, logits, request, with_rows, seed), logits, request
