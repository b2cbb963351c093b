"""Tokens of drafts, picked by a drafter's own logits, with the rows that they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.adjustments import Prefix
from forerun.core import Drawing
from forerun.randomness import Purpose, Randomness
from forerun.sampling.draws import draw, draw_coupled, top
from forerun.sampling.warping import warp_for_drafts


def draw_draft(
    logits: Tensor,
    prefixes: Sequence[Prefix],
    drawings: Sequence[Drawing],
    nodes: Sequence[int],
    randomness: Randomness,
) -> tuple[list[int | None], Tensor]:
    """Draw one drafted token a row and return it with the rows that it was drawn from.

    Args:
        logits: the draft's own, [N, V].
        prefixes: what stands before each row.
        drawings: how to pick each token.
        nodes: the node that each token becomes, which keys its draw.
        randomness: the engine's.

    Returns:
        The token ids, None where nothing can follow the prefix (a mask that allows nothing there),
        and the rows [N, V]; rows of tokens that were not drawn are no proposal distributions and
        must not be recorded.
    """
    probs, dead = warp_for_drafts(logits, prefixes)
    tokens: list[int | None] = [None] * len(prefixes)
    for drawing in Drawing:
        rows = [row for row, one in enumerate(drawings) if one is drawing and row not in dead]
        if rows:
            some = [prefixes[row] for row in rows]
            chosen = probs if len(rows) == len(probs) else probs[rows]
            keys = [nodes[row] for row in rows]
            for row, token in zip(
                rows, _pick(chosen, some, drawing, keys, randomness), strict=True
            ):
                tokens[row] = token
    return tokens, probs


@dataclass(frozen=True)
class Children:
    """Tokens after one prefix, the first to be tested first.

    Args:
        token_ids: as many as were asked for, or as the row has.
        probs: of deterministic ones, how probable the drafter finds each.
        rows: of drawn ones, what each was drawn from, [n, V].
    """

    token_ids: list[int]
    probs: list[float] | None = None
    rows: Tensor | None = None


def most_likely(logits: Tensor, prefixes: Sequence[Prefix], count: int) -> list[Children]:
    """The `count` most probable tokens after each prefix, the most probable first.

    They are point masses. What the sampler excludes is left out: the target would never take it.
    For greedy requests the probabilities are those of a low temperature.
    """
    probs, dead = warp_for_drafts(logits, prefixes, ranking=True)
    values, ids = probs.topk(min(count, probs.shape[-1]), dim=-1)
    found = []
    for row, (tokens, shares) in enumerate(zip(ids.tolist(), values.tolist(), strict=True)):
        possible = 0 if row in dead else sum(share > 0 for share in shares)
        found.append(Children(tokens[:possible], shares[:possible]))
    return found


def draw_siblings(
    logits: Tensor,
    prefixes: Sequence[Prefix],
    drawing: Drawing,
    nodes: Sequence[Sequence[int]],
    randomness: Randomness,
    *,
    replacement: bool = False,
) -> list[Children]:
    """The children of several nodes: drawn in order, or the most probable.

    Args:
        logits: after each node, [N, V].
        prefixes: what stands before the children of each.
        drawing: how to pick them; drawn ones are conditioned on the siblings before. Coupled ones
            are the first by log probability plus the noise of their position.
        nodes: for each, the nodes that its children become.
        randomness: the engine's.
        replacement: whether a drawn child may repeat its siblings' tokens. Others never do.
    """
    if drawing is Drawing.GREEDY:
        found = most_likely(logits, prefixes, max(map(len, nodes), default=0))
        return [_first(one, len(each)) for one, each in zip(found, nodes, strict=True)]
    probs, dead = warp_for_drafts(logits, prefixes)
    if dead:
        nodes = [() if row in dead else each for row, each in enumerate(nodes)]
    if drawing is Drawing.SAMPLED and native.takes(probs) and randomness.by_key_alone:
        return _in_one_call(probs, prefixes, nodes, replacement)
    return [
        _one_by_one(probs[row : row + 1], prefix, drawing, each, randomness, replacement)
        for row, (prefix, each) in enumerate(zip(prefixes, nodes, strict=True))
    ]


def _first(children: Children, count: int) -> Children:
    assert children.probs is not None
    return Children(children.token_ids[:count], children.probs[:count])


def _in_one_call(
    probs: Tensor, prefixes: Sequence[Prefix], nodes: Sequence[Sequence[int]], replacement: bool
) -> list[Children]:
    keys = [(prefix.request.seed, len(prefix.request)) for prefix in prefixes]
    tokens, rows = native.draw_siblings(probs, keys, nodes, replacement)
    shares = torch.split(rows, [len(each) for each in tokens])
    return [Children(each, rows=share) for each, share in zip(tokens, shares, strict=True)]


def _one_by_one(
    row: Tensor,
    prefix: Prefix,
    drawing: Drawing,
    nodes: Sequence[int],
    randomness: Randomness,
    replacement: bool,
) -> Children:
    """The children of one node, each taken out of the row [1, V] before the next is drawn."""
    tokens, rows = [], []
    for node in nodes:
        token = _pick(row, [prefix], drawing, [node], randomness)[0]
        tokens.append(token)
        rows.append(row[0])
        if replacement or len(tokens) == len(nodes):
            continue
        row = row.clone()
        row[0, token] = 0.0
        total = row.sum()
        if total <= 0:
            break
        row = row / total
    drawn = drawing is Drawing.SAMPLED and rows
    return Children(tokens, rows=torch.stack(rows) if drawn else None)


def _pick(
    probs: Tensor,
    prefixes: Sequence[Prefix],
    drawing: Drawing,
    nodes: Sequence[int],
    randomness: Randomness,
) -> list[int]:
    """A token a row, drawn, taken from the top, or coupled."""
    if drawing is Drawing.GREEDY:
        return top(probs)
    if drawing is Drawing.COUPLED:
        return draw_coupled(probs, prefixes, randomness)
    keys = [(prefix.request.seed, len(prefix.request), Purpose.DRAFT) for prefix in prefixes]
    pairs = zip(keys, nodes, strict=True)
    return draw(probs, [randomness.uniform(*key, node) for key, node in pairs])
