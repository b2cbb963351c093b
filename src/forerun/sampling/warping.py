"""From logits to probabilities: penalties, logit bias, masks, temperature, top-k, top-p, min-p.

The plain loop, the target's rows and the drafters' rows all go through here, in this order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Several

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.adjustments import History, Prefix, adjust
from forerun.core import Draft, Sequence
from forerun.errors import ConfigError, DistributionError
from forerun.params import SamplingParams

BROKEN = "the model is broken: a row of its logits holds NaN or inf."
# What ranks the tokens of greedy requests, whose own rows are one-hot. The target's most likely
# token is the draft's more often than the draft gives it probability: among 0.4, 0.6 and 1.0 the
# middle one made the best trees on held-out text.
_FOR_RANKING = SamplingParams(temperature=0.5)


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


def warp_for_drafts(
    logits: Tensor, prefixes: Several[Prefix], *, ranking: bool = False
) -> tuple[Tensor, frozenset[int]]:
    """As `warp`, with which rows leave no token possible instead of an error for them; those hold no
    distribution. A drafter asks about prefixes that the target may never reach, so a mask hook that
    fails is taken for one that allows nothing there.

    Args:
        ranking: give greedy requests softer rows in place of one-hot ones, which rank all tokens but
            the first alike.
    """
    return _warp(logits, prefixes, lenient=True, ranking=ranking)


def _warp(
    logits: Tensor, prefixes: Several[Prefix], *, lenient: bool, ranking: bool = False
) -> tuple[Tensor, frozenset[int]]:
    """The probabilities, and which rows leave no token possible; those hold no distribution."""
    scores = (logits if logits.dtype == torch.float64 else logits.float()).contiguous()
    first = prefixes[0].params
    same = all(prefix.params is first for prefix in prefixes)
    if first.adjusts if same else any(prefix.params.adjusts for prefix in prefixes):
        scores = scores.clone()
        histories: dict[int, History] = {}
        for row, prefix in zip(scores, prefixes, strict=True):
            adjust(row, prefix, histories, lenient)
    if same:
        return _distributions(scores, _shaped_by(first, ranking))
    probs, dead = torch.empty_like(scores), frozenset[int]()
    for rows in _group(prefixes):
        params = _shaped_by(prefixes[rows[0]].params, ranking)
        probs[rows], nowhere = _distributions(scores[rows], params)
        dead |= {rows[index] for index in nowhere}
    return probs, dead


def _shaped_by(params: SamplingParams, ranking: bool) -> SamplingParams:
    return _FOR_RANKING if ranking and params.greedy else params


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
