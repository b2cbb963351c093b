"""The only place where logits become probabilities and probabilities become tokens.

The plain loop, the target's rows and the drafters' rows all go through `warp`. The order is fixed:
penalties, logit bias, masks, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core import Draft, Drawing, Sequence
from forerun.errors import ConfigError, DistributionError
from forerun.params import SamplingParams
from forerun.randomness import Purpose, Randomness


@dataclass(frozen=True)
class Prefix:
    """What stands before a row: the committed tokens of a sequence and the drafted ones after them."""

    sequence: Sequence
    drafted: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        return self.sequence.params

    @property
    def position(self) -> int:
        """The position of the token that the row is for."""
        return len(self.sequence) + len(self.drafted)


def prefixes_of(sequence: Sequence, draft: Draft) -> list[Prefix]:
    """The prefixes of the n + 1 target rows of a draft: the committed tokens, then each node."""
    nodes = range(-1, len(draft))
    return [Prefix(sequence, tuple(draft.tokens_to(node))) for node in nodes]


def warp(logits: Tensor, prefixes: Several[Prefix]) -> Tensor:
    """Probabilities [N, V] from logits [N, V], each row as the parameters of its prefix ask.

    Float64 logits stay float64, all others become float32. Greedy rows are one-hot.

    Raises:
        DistributionError: for a row that is NaN, infinite or leaves no token possible.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if any(_adjusts(prefix.params) for prefix in prefixes):
        scores = _adjust(scores.clone(), prefixes)
    largest = scores.amax(dim=-1, keepdim=True)
    if not torch.isfinite(largest).all():
        raise DistributionError(
            "a row of logits is all -inf or holds NaN or inf: a mask, bias or ban leaves no token, "
            "or the model is broken."
        )
    groups = _group(prefixes)
    if len(groups) == 1:
        return _shape(scores - largest, prefixes[0].params)
    probs = torch.empty_like(scores)
    for rows in groups:
        probs[rows] = _shape(scores[rows] - largest[rows], prefixes[rows[0]].params)
    return probs


def draw(probs: Tensor, uniforms: Several[float]) -> list[int]:
    """One token a row of `probs` [N, V]: the inverse of the cumulative distribution at `uniforms`."""
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
    return (probs.log() + noise.to(probs.device)).argmax(-1).tolist()


def draw_next(logits: Tensor, prefixes: Several[Prefix], randomness: Randomness) -> list[int]:
    """Plain decoding: one token a row, coupled for requests with a seed, independent for others."""
    probs = warp(logits, prefixes)
    uniforms = [
        0.0
        if prefix.params.greedy or prefix.params.seed is not None
        else randomness.uniform(prefix.sequence.seed, prefix.position, Purpose.EMIT)
        for prefix in prefixes
    ]
    tokens = draw(probs, uniforms)
    for row, prefix in enumerate(prefixes):
        if prefix.params.seed is not None:
            tokens[row] = draw_coupled(probs[row : row + 1], [prefix], randomness)[0]
    return tokens


def draw_coupled(probs: Tensor, prefixes: Several[Prefix], randomness: Randomness) -> list[int]:
    """One token a row, with the noise that every other draw for the same position uses."""
    if all(prefix.params.greedy for prefix in prefixes):
        return probs.argmax(-1).tolist()
    rows: dict[tuple[int, int], Tensor] = {}
    for prefix in prefixes:
        key = (prefix.sequence.seed, prefix.position)
        if key not in rows:
            rows[key] = randomness.gumbel(*key, probs.shape[-1], probs.device)
    noise = [rows[prefix.sequence.seed, prefix.position] for prefix in prefixes]
    return couple(probs, torch.stack(noise))


def draw_draft(
    logits: Tensor,
    prefixes: Several[Prefix],
    drawings: Several[Drawing],
    nodes: Several[int],
    randomness: Randomness,
) -> tuple[list[int], Tensor]:
    """Draw one drafted token a row and return it with the rows that it was drawn from.

    Args:
        logits: the draft's own, [N, V].
        prefixes: what stands before each row.
        drawings: how to pick each token.
        nodes: the node that each token becomes, which keys its draw.
        randomness: the engine's.

    Returns:
        The token ids, and the rows [N, V]; rows of tokens that were not drawn are no proposal
        distributions and must not be recorded.
    """
    probs = warp(logits, prefixes)
    tokens = probs.argmax(-1).tolist()
    for drawing in (Drawing.DRAW, Drawing.COUPLE):
        rows = [row for row, one in enumerate(drawings) if one is drawing]
        if not rows:
            continue
        chosen = probs if len(rows) == len(probs) else probs[rows]
        some = [prefixes[row] for row in rows]
        if drawing is Drawing.COUPLE:
            drawn = draw_coupled(chosen, some, randomness)
        else:
            drawn = draw(
                chosen,
                [
                    randomness.uniform(
                        prefix.sequence.seed, len(prefix.sequence), Purpose.DRAFT, nodes[row]
                    )
                    for row, prefix in zip(rows, some, strict=True)
                ],
            )
        for row, token in zip(rows, drawn, strict=True):
            tokens[row] = token
    return tokens, probs


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


def _adjusts(params: SamplingParams) -> bool:
    lists = params.logit_bias or params.banned_token_ids or params.allowed_token_ids is not None
    return bool(lists) or params.depends_on_history


def _adjust(scores: Tensor, prefixes: Several[Prefix]) -> Tensor:
    for row, prefix in zip(scores, prefixes, strict=True):
        _penalize(row, prefix)
        _bias_and_ban(row, prefix)
    return scores


def _penalize(row: Tensor, prefix: Prefix) -> None:
    params, sequence = prefix.params, prefix.sequence
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(
            sorted({*sequence.token_ids, *prefix.drafted}), dtype=torch.long, device=row.device
        )
        scores = row[seen]
        factor = params.repetition_penalty
        row[seen] = torch.where(scores > 0, scores / factor, scores * factor)
    if params.presence_penalty or params.frequency_penalty:
        output = [*sequence.output_ids, *prefix.drafted]
        if output:
            ids = torch.tensor(output, dtype=torch.long, device=row.device)
            ids, counts = torch.unique(ids, return_counts=True)
            row[ids] -= params.presence_penalty + params.frequency_penalty * counts.to(row.dtype)


def _bias_and_ban(row: Tensor, prefix: Prefix) -> None:
    params = prefix.params
    for token, bias in params.logit_bias.items():
        row[token] += bias
    if params.banned_token_ids:
        row[list(params.banned_token_ids)] = -torch.inf
    if params.allowed_token_ids is not None:
        allowed = torch.zeros_like(row, dtype=torch.bool)
        allowed[list(params.allowed_token_ids)] = True
        row.masked_fill_(~allowed, -torch.inf)
    if params.mask is not None:
        mask = params.mask(prefix.sequence.token_ids, prefix.drafted)
        if mask is not None:
            allowed = torch.as_tensor(mask, dtype=torch.bool, device=row.device)
            if allowed.shape != row.shape:
                raise ConfigError(
                    f"the mask hook returned shape {list(allowed.shape)}; it must return "
                    f"[{len(row)}], one entry a token, or None."
                )
            row.masked_fill_(~allowed, -torch.inf)


def _group(prefixes: Several[Prefix]) -> list[list[int]]:
    """Rows whose distributions take the same shape, together."""
    first = prefixes[0].params
    if all(prefix.params is first for prefix in prefixes):
        return [list(range(len(prefixes)))]
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
