"""The only place where logits become probabilities and probabilities become tokens.

The plain loop, the target's rows and the drafters' rows all go through `warp`. The order is fixed:
penalties, logit bias, masks, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Several

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.adjustments import History, adjust
from forerun.adjustments import Prefix as Prefix
from forerun.core import Draft, Drawing, Sequence
from forerun.errors import ConfigError, DistributionError
from forerun.params import SamplingParams
from forerun.randomness import Purpose, Randomness

BROKEN = "the model is broken: a row of its logits holds NaN or inf."


def prefixes_of(sequence: Sequence, draft: Draft) -> list[Prefix]:
    """The prefixes of the n + 1 target rows of a draft: the committed tokens, then each node."""
    nodes = range(-1, len(draft))
    return [Prefix(sequence, tuple(draft.tokens_to(node))) for node in nodes]


def warp(logits: Tensor, prefixes: Several[Prefix]) -> Tensor:
    """Probabilities [N, V] from logits [N, V], each row as the parameters of its prefix ask.

    Float64 logits stay float64, all others become float32. Greedy rows are one-hot.

    Raises:
        DistributionError: for a row that is NaN or infinite, or that leaves no token possible.
    """
    probs, dead = _warp(logits, prefixes, lenient=False)
    if dead:
        raise DistributionError(
            "a row of logits is all -inf: its mask, bias or bans leave no token possible; "
            "let a mask always allow at least one."
        )
    return probs


def warp_draft(logits: Tensor, sequence: Sequence, draft: Draft) -> Tensor:
    """The n + 1 target rows of a draft: after the committed tokens, then after each node.

    A mask hook is asked about those prefixes alone that plain decoding could reach: not about one
    that holds a token which the rows before exclude, and not about what follows a stop token. Rows
    of other prefixes are never followed to an emitted token; they repeat their parent's.
    """
    if not sequence.params.adjusts:
        # Only penalties, biases and masks look at what stands before a row.
        return warp(logits, [Prefix(sequence)] * (len(draft) + 1))
    prefixes = prefixes_of(sequence, draft)
    if sequence.params.mask is None:
        return warp(logits, prefixes)
    rows = [warp(logits[:1], prefixes[:1])]
    reached = [True]
    for node, (token, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
        before = rows[parent + 1]
        possible = token not in sequence.stop_token_ids and bool(before[0, token] > 0)
        reached.append(reached[parent + 1] and possible)
        at = slice(node + 1, node + 2)
        rows.append(warp(logits[at], prefixes[at]) if reached[-1] else before)
    return torch.cat(rows)


def draw(probs: Tensor, uniforms: Several[float]) -> list[int]:
    """One token a row of `probs` [N, V]: the inverse of the cumulative distribution at `uniforms`."""
    if native.takes(probs):
        return native.draw(probs, uniforms)
    # MPS has no float64; everywhere else the sum of a long float32 row would round visibly.
    wide = probs if probs.device.type == "mps" else probs.double()
    cumulative = wide.cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    points = torch.tensor(uniforms, dtype=wide.dtype, device=wide.device)[:, None] * total
    chosen = torch.searchsorted(cumulative, points, right=True)
    # Where rounding carries a point up to the total, the last token with probability stands.
    last = torch.searchsorted(cumulative, total)
    return torch.minimum(chosen, last).flatten().tolist()


def couple(probs: Tensor, noise: Tensor) -> list[int]:
    """One token a row: argmax(log prob + Gumbel noise), both [N, V]; distributed as `probs`."""
    if native.takes(probs):
        return native.couple(probs, noise)
    return (probs.to(noise.dtype).log() + noise.to(probs.device)).argmax(-1).tolist()


def draw_plain(probs: Tensor, prefix: Prefix, randomness: Randomness) -> int:
    """Plain decoding: a token from one row [1, V], coupled if the request has a seed."""
    if prefix.params.seed is not None or prefix.params.greedy:
        return draw_coupled(probs, [prefix], randomness)[0]
    uniform = randomness.uniform(prefix.sequence.seed, prefix.position, Purpose.EMIT)
    return draw(probs, [uniform])[0]


def draw_coupled(probs: Tensor, prefixes: Several[Prefix], randomness: Randomness) -> list[int]:
    """One token a row, with the noise that every other draw for the same position uses."""
    if all(prefix.params.greedy for prefix in prefixes):
        return _top(probs)
    keys = [(prefix.sequence.seed, prefix.position) for prefix in prefixes]
    if native.takes(probs) and randomness.by_key_alone:
        return native.couple_keys(probs, keys)
    noise = {key: randomness.gumbel(*key, probs.shape[-1], probs.device) for key in set(keys)}
    return couple(probs, torch.stack([noise[key] for key in keys]))


def draw_draft(
    logits: Tensor,
    prefixes: Several[Prefix],
    drawings: Several[Drawing],
    nodes: Several[int],
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
    probs, dead = _warp(logits, prefixes, lenient=True)
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


def draw_siblings(
    logits: Tensor,
    prefix: Prefix,
    drawing: Drawing,
    nodes: Several[int],
    randomness: Randomness,
    *,
    replacement: bool = False,
) -> list[tuple[int, Tensor]]:
    """Draw the children of one node, in order, each with the row [V] that it was drawn from.

    Args:
        logits: of the node, [1, V].
        prefix: what stands before the children.
        drawing: how to pick them; drawn ones are conditioned on the siblings before.
        nodes: the nodes that they become.
        randomness: the engine's.
        replacement: whether a drawn child may repeat its siblings' tokens. Others never do.

    Returns:
        As many as the row has tokens for.
    """
    row, dead = _warp(logits, [prefix], lenient=True)
    siblings: list[tuple[int, Tensor]] = []
    for node in () if dead else nodes:
        token = _pick(row, [prefix], drawing, [node], randomness)[0]
        siblings.append((token, row[0]))
        if drawing is Drawing.DRAW and replacement:
            continue
        row = row.clone()
        row[0, token] = 0.0
        total = row.sum()
        if total <= 0:
            break
        row = row / total
    return siblings


def log_probs(logits: Tensor, probs: Tensor, mode: str) -> Tensor:
    """What is reported as log probabilities, [N, V]: of the `raw` or the `processed` rows."""
    if mode == "processed":
        return probs.log()
    return logits.to(probs.dtype).log_softmax(-1)


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse options that name a token outside the vocabulary.

    Raises:
        ConfigError: naming the option and the id.
    """
    for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        for token in getattr(params, name) or ():
            if not 0 <= token < vocab_size:
                raise ConfigError(
                    f"{name} holds token id {token}; this model's ids are 0 to {vocab_size - 1}."
                )


def _warp(
    logits: Tensor, prefixes: Several[Prefix], *, lenient: bool
) -> tuple[Tensor, frozenset[int]]:
    """The probabilities, and which rows leave no token possible; those hold no distribution.

    A lenient call takes a mask hook that fails for one that allows nothing: a drafter asks about
    prefixes that the target may never reach.
    """
    scores = (logits if logits.dtype == torch.float64 else logits.float()).contiguous()
    first = prefixes[0].params
    same = all(prefix.params is first for prefix in prefixes)
    if first.adjusts if same else any(prefix.params.adjusts for prefix in prefixes):
        scores = scores.clone()
        histories: dict[int, History] = {}
        for row, prefix in zip(scores, prefixes, strict=True):
            adjust(row, prefix, histories, lenient)
    if same:
        return _distributions(scores, first)
    probs, dead = torch.empty_like(scores), frozenset[int]()
    for rows in _group(prefixes):
        probs[rows], nowhere = _distributions(scores[rows], prefixes[rows[0]].params)
        dead |= {rows[index] for index in nowhere}
    return probs, dead


def _distributions(scores: Tensor, params: SamplingParams) -> tuple[Tensor, frozenset[int]]:
    """The probabilities of scores [N, V] under one set of parameters, and which rows are all -inf."""
    if native.takes(scores):
        shape = (params.temperature, params.top_k, params.top_p, params.min_p)
        probs, dead, broken = native.warp(scores, *shape)
        if broken:
            raise DistributionError(BROKEN)
        return probs, frozenset(dead)
    largest = scores.amax(dim=-1, keepdim=True)
    if torch.isfinite(largest).all():
        return _shape(scores - largest, params), frozenset()
    empty = largest == -torch.inf
    if not (torch.isfinite(largest) | empty).all():
        raise DistributionError(BROKEN)
    scores = scores.masked_fill(empty, 0.0) - largest.masked_fill(empty, 0.0)
    return _shape(scores, params), frozenset(empty.flatten().nonzero().flatten().tolist())


def _pick(
    probs: Tensor,
    prefixes: Several[Prefix],
    drawing: Drawing,
    nodes: Several[int],
    randomness: Randomness,
) -> list[int]:
    """A token a row, drawn, taken from the top, or coupled."""
    if drawing is Drawing.TOP:
        return _top(probs)
    if drawing is Drawing.COUPLE:
        return draw_coupled(probs, prefixes, randomness)
    keys = [(prefix.sequence.seed, len(prefix.sequence), Purpose.DRAFT) for prefix in prefixes]
    pairs = zip(keys, nodes, strict=True)
    return draw(probs, [randomness.uniform(*key, node) for key, node in pairs])


def _top(probs: Tensor) -> list[int]:
    return native.top(probs) if native.takes(probs) else probs.argmax(-1).tolist()


def _group(prefixes: Several[Prefix]) -> list[list[int]]:
    """Rows whose distributions take the same shape, together."""
    groups: dict[tuple[float, int, float, float], list[int]] = defaultdict(list)
    for row, prefix in enumerate(prefixes):
        params = prefix.params
        groups[params.temperature, params.top_k, params.top_p, params.min_p].append(row)
    return list(groups.values())


def _shape(scores: Tensor, params: SamplingParams) -> Tensor:
    """Temperature, top-k, top-p, min-p on scores [N, V] whose largest is 0 in every row."""
    if params.greedy:
        return torch.zeros_like(scores).scatter_(1, scores.argmax(-1, keepdim=True), 1.0)
    scores = scores / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        smallest = scores.topk(params.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    probs = scores.softmax(-1)
    if params.top_p < 1.0:
        probs = _nucleus(probs, params.top_p)
    if params.min_p > 0.0:
        probs = probs.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the most likely tokens until their sum reaches `top_p` (Holtzman et al., arXiv 1904.09751)."""
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    probs = torch.zeros_like(probs).scatter_(1, ids, kept)
    return probs / probs.sum(-1, keepdim=True)
