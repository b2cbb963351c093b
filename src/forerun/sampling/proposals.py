"""Drawing of tokens from probabilities, and of draft tokens with the rows that they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.adjustments import Prefix
from forerun.core import Drawing
from forerun.randomness import Purpose, Randomness
from forerun.sampling.warping import warp_for_drafts


def draw(probs: Tensor, uniforms: Sequence[float]) -> list[int]:
    """Draw one token from each row of `probs` [N, V], by inversion of its cumulative distribution."""
    if native.takes(probs):
        return native.draw(probs, uniforms)
    return draw_tensor(probs, uniforms).tolist()


def draw_tensor(probs: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Draw as `draw` does, in torch; int64 [N], left on the device of `probs`."""
    # MPS has no float64; everywhere else the sum of a long float32 row would round visibly.
    wide = probs if probs.device.type == "mps" else probs.double()
    cumulative = wide.cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    points = torch.tensor(uniforms, dtype=wide.dtype, device=wide.device)[:, None] * total
    chosen = torch.searchsorted(cumulative, points, right=True)
    # If rounding carries a point up to the total, the last token with probability is taken.
    last = torch.searchsorted(cumulative, total)
    return torch.minimum(chosen, last).flatten()


def couple(probs: Tensor, noise: Tensor) -> list[int]:
    """Draw argmax(log prob + Gumbel noise) from each row, both [N, V]; distributed as `probs`."""
    return native.couple(probs, noise) if native.takes(probs) else _coupled(probs, noise).tolist()


def _coupled(probs: Tensor, noise: Tensor) -> Tensor:
    return (probs.to(noise.dtype).log() + noise.to(probs.device)).argmax(-1)


def draw_plain(probs: Tensor, prefix: Prefix, randomness: Randomness) -> int:
    """Draw a token from one row [1, V] as plain decoding does, coupled if the request has a seed."""
    if prefix.params.seed is not None or prefix.params.greedy:
        return draw_coupled(probs, [prefix], randomness)[0]
    uniform = randomness.uniform(prefix.request.seed, prefix.position, Purpose.EMIT)
    return draw(probs, [uniform])[0]


def draw_coupled(probs: Tensor, prefixes: Sequence[Prefix], randomness: Randomness) -> list[int]:
    """Draw one token from each row, with the noise that every other draw for the same position uses."""
    if not native.takes(probs):
        return coupled_tensor(probs, prefixes, randomness).tolist()
    if all(prefix.params.greedy for prefix in prefixes):
        return native.top(probs)
    if randomness.by_key_alone:
        return native.couple_keys(probs, [_key(prefix) for prefix in prefixes])
    return native.couple(probs, _noise(probs, prefixes, randomness))


def coupled_tensor(probs: Tensor, prefixes: Sequence[Prefix], randomness: Randomness) -> Tensor:
    """Draw as `draw_coupled` does, in torch; int64 [N], left on the device of `probs`."""
    if all(prefix.params.greedy for prefix in prefixes):
        return probs.argmax(-1)
    return _coupled(probs, _noise(probs, prefixes, randomness))


def _key(prefix: Prefix) -> tuple[int, int]:
    return prefix.request.seed, prefix.position


def _noise(probs: Tensor, prefixes: Sequence[Prefix], randomness: Randomness) -> Tensor:
    """The noise of each row's position, [N, V]."""
    keys = [_key(prefix) for prefix in prefixes]
    noise = {key: randomness.gumbel(*key, probs.shape[-1], probs.device) for key in set(keys)}
    return torch.stack([noise[key] for key in keys])


@dataclass(frozen=True, slots=True)
class Children:
    """Tokens after one prefix, in the order in which they are tested.

    Args:
        token_ids: as many as were asked for, or as the row has.
        probs: the drafter's probability of each deterministic token, if that was asked for.
        rows: the row that each drawn token was drawn from, [n, V].
        vocabulary: the tokens that the columns of the rows stand for, unless those are all of the
            target's.
    """

    token_ids: list[int]
    probs: list[float] | None = None
    rows: Tensor | None = None
    vocabulary: DraftVocabulary | None = None


class DraftVocabulary:
    """The tokens that a drafter proposes from, if they are a subset of the target's.

    Args:
        token_ids: the target's token of each draft token, int64 [Vd], each at most once.
        size: size of the target's vocabulary, V.
    """

    def __init__(self, token_ids: Tensor, size: int) -> None:
        self._ids, self._size = token_ids, size
        self.token_ids: list[int] = token_ids.tolist()
        """The target's token of each draft token, on the host."""

    def widen(self, rows: Tensor, fill: float) -> Tensor:
        """Rows [N, Vd] spread over the target's vocabulary, [N, V]; all other columns are `fill`."""
        wide = rows.new_full((len(rows), self._size), fill)
        return wide.index_copy_(1, self._ids, rows)

    def tokens_of(self, columns: Sequence[int]) -> list[int]:
        """The target's tokens of some columns."""
        return [self.token_ids[column] for column in columns]

    def in_target(self, children: Children) -> Children:
        """The children as tokens of the target; their rows are not widened."""
        return replace(children, token_ids=self.tokens_of(children.token_ids), vocabulary=self)


def most_probable(logits: Tensor, vocabulary: DraftVocabulary | None = None) -> list[int] | None:
    """The most probable token after each row [N, V] of unadjusted logits.

    None if it can only be found, or its row refused, by turning the logits into probabilities.
    """
    if not native.takes(logits):
        return None
    tokens = native.top(logits)
    if min(tokens) < 0:
        return None
    return tokens if vocabulary is None else vocabulary.tokens_of(tokens)


def top_shares(logits: Tensor) -> list[float]:
    """Probability of the most probable token after each row [N, V] of logits, before any warping.

    1 for rows that hold no distribution; those are refused when a token is drawn from them.
    """
    if native.takes(logits):
        probs, dead, broken = native.warp(logits, 1.0, 0, 1.0, 0.0)
        flawed = {*dead, *broken}
        tops = probs.amax(-1).tolist()
        return [1.0 if row in flawed else top for row, top in enumerate(tops)]
    tops = logits.softmax(-1).amax(-1).tolist()
    return [top if top == top else 1.0 for top in tops]


def draw_siblings(
    logits: Tensor,
    prefixes: Sequence[Prefix],
    drawing: Drawing,
    nodes: Sequence[Sequence[int]],
    randomness: Randomness,
    *,
    replacement: bool = False,
    vocabulary: DraftVocabulary | None = None,
    row_of: Sequence[int] | None = None,
) -> list[Children]:
    """The children of several nodes: drawn in order, or the most probable tokens.

    The most probable are point masses, without the tokens that the sampler excludes, which the
    target would never take. Probabilities for greedy requests are those at a low temperature. A
    node that no token can follow, such as one where a mask allows nothing, has no children.

    Args:
        logits: the row after each node, [N, V].
        prefixes: the prefix of the children of each node.
        drawing: the way to pick tokens. Drawn tokens are conditioned on the siblings before them.
            Coupled ones are the first by log probability plus the noise of their position.
        nodes: for each node, the indices of its children, which key their draws.
        randomness: the engine's.
        replacement: a drawn child may repeat a sibling's token. Other children never do.
        vocabulary: the tokens that the columns of the logits stand for, unless those are all of the
            target's.
        row_of: index of the row of the logits after each node, if nodes of one request share rows;
            each row has a node.
    """
    own_rows = drawing is Drawing.COUPLED or any(prefix.params.adjusts for prefix in prefixes)
    if vocabulary is not None:
        # Adjustments and shared noise are indexed by the target's tokens.
        if own_rows:
            logits = vocabulary.widen(logits, -torch.inf)
        else:
            few = partial(draw_siblings, replacement=replacement, row_of=row_of)
            children = few(logits, prefixes, drawing, nodes, randomness)
            return [vocabulary.in_target(drawn) for drawn in children]
    if row_of is None or own_rows:
        logits = logits if row_of is None else logits[row_of]
        row_of = range(len(logits))
    return _drawn(logits, prefixes, drawing, nodes, randomness, replacement, row_of)


def _drawn(
    logits: Tensor,
    prefixes: Sequence[Prefix],
    drawing: Drawing,
    nodes: Sequence[Sequence[int]],
    randomness: Randomness,
    replacement: bool,
    row_of: Sequence[int],
) -> list[Children]:
    """The children of nodes whose rows of logits are `row_of`."""
    firsts = dict(zip(reversed(row_of), reversed(prefixes), strict=True))
    warped = [firsts[row] for row in range(len(logits))]
    probs, dead = warp_for_drafts(logits, warped, ranking=drawing is Drawing.GREEDY)
    if dead:
        nodes = [() if row in dead else own for row, own in zip(row_of, nodes, strict=True)]
    if drawing is Drawing.GREEDY:
        return _most_likely(probs, row_of, [len(own) for own in nodes])
    if len(row_of) > len(probs):
        probs = probs[row_of]
    if drawing is Drawing.SAMPLED and native.takes(probs) and randomness.by_key_alone:
        keys = [(prefix.request.seed, len(prefix.request)) for prefix in prefixes]
        tokens, rows = native.draw_siblings(probs, keys, nodes, replacement)
        shares = torch.split(rows, [len(own) for own in tokens]) if len(tokens) > 1 else (rows,)
        return [Children(own, rows=share) for own, share in zip(tokens, shares, strict=True)]
    return [
        _one_by_one(probs[row : row + 1], prefix, drawing, own, randomness, replacement)
        for row, (prefix, own) in enumerate(zip(prefixes, nodes, strict=True))
    ]


def _most_likely(probs: Tensor, row_of: Sequence[int], counts: Sequence[int]) -> list[Children]:
    """The most probable tokens of each node's row, the most probable first; fewer if no more are possible."""
    most = min(max(counts, default=0), probs.shape[-1])
    # A maximum is found far faster than a ranking.
    values, ids = probs.max(-1, keepdim=True) if most == 1 else probs.topk(most, dim=-1)
    tokens, shares = ids.tolist(), values.tolist()
    children = []
    for row, count in zip(row_of, counts, strict=True):
        possible = [share for share in shares[row][:count] if share > 0]
        children.append(Children(tokens[row][: len(possible)], possible))
    return children


def _one_by_one(
    row: Tensor,
    prefix: Prefix,
    drawing: Drawing,
    nodes: Sequence[int],
    randomness: Randomness,
    replacement: bool,
) -> Children:
    """The children of one node: each token is removed from the row [1, V] before the next is drawn."""
    tokens: list[int] = []
    rows = []
    key = (prefix.request.seed, len(prefix.request), Purpose.DRAFT)
    for node in nodes:
        if drawing is Drawing.COUPLED:
            tokens += draw_coupled(row, [prefix], randomness)
        else:
            tokens += draw(row, [randomness.uniform(*key, node)])
        rows.append(row[0])
        if replacement or len(tokens) == len(nodes):
            continue
        row = row.clone()
        row[0, tokens[-1]] = 0.0
        total = row.sum()
        if total <= 0:
            break
        row = row / total
    drawn = drawing is Drawing.SAMPLED and rows
    return Children(tokens, rows=torch.stack(rows) if drawn else None)
