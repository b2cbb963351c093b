"""Warping of logits into probabilities: penalties, logit bias, masks, temperature, top-k, top-p, min-p.

The plain loop, the target's rows and the drafters' rows all use it, in this order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.adjustments import History, Prefix, adjust
from forerun.errors import ConfigError, DistributionError
from forerun.params import SamplingParams, Warp

BROKEN = "the model is broken: a row of its logits holds NaN or inf."
EMPTY = (
    "a row of logits is all -inf: its mask, bias or bans leave no token possible; "
    "let a mask always allow at least one."
)
# State of a row of scores: a distribution, a row without a possible token, or not numbers.
_FINE, _EMPTY, _BROKEN = 0, 1, 2
# Settings that rank the tokens of greedy requests, whose own rows are one-hot. A draft's first choice is
# the target's more often than the draft's probability says: among 0.4, 0.6 and 1.0 the middle one made
# the best trees on held-out text.
_FOR_RANKING = Warp(temperature=0.5)


def warp(logits: Tensor, prefixes: Sequence[Prefix]) -> Tensor:
    """Probabilities [N, V] from logits [N, V], each row as the parameters of its prefix ask.

    Float64 logits stay float64, all others become float32. Greedy rows are one-hot.

    Raises:
        DistributionError: for a row that is NaN or infinite, or that leaves no token possible.
    """
    probs, flags = _warp(logits, prefixes, lenient=False)
    if flags is not None and bool(flags.any()):
        raise DistributionError(BROKEN if bool((flags == _BROKEN).any()) else EMPTY)
    return probs


def warp_unchecked(logits: Tensor, prefixes: Sequence[Prefix]) -> tuple[Tensor, Tensor]:
    """Warp as `warp` does, without waiting for a device; flag rows that are not distributions.

    The flags are bool [N]. Flagged rows are returned as uniform, so that they can be computed with.
    """
    probs, flags = _warp(logits, prefixes, lenient=False)
    if flags is None:
        return probs, torch.zeros(len(probs), dtype=torch.bool, device=probs.device)
    broken = flags != _FINE
    return probs.masked_fill(broken[:, None], 1 / probs.shape[-1]), broken


def adjusted(logits: Tensor, prefixes: Sequence[Prefix], *, lenient: bool = False) -> Tensor:
    """Logits [N, V] after penalties, bias, bans and masks, in the dtype of the probabilities.

    Args:
        lenient: a mask hook that fails allows nothing instead of raising.
    """
    scores = (logits if logits.dtype == torch.float64 else logits.float()).contiguous()
    some = prefixes[:1] if _are_alike(prefixes) else prefixes
    if not any(prefix.params.adjusts for prefix in some):
        return scores
    scores = scores.clone()
    histories: dict[int, History] = {}
    for row, prefix in zip(scores, prefixes, strict=True):
        adjust(row, prefix, histories, lenient)
    return scores


def log_probs(logits: Tensor, probs: Tensor, mode: str) -> Tensor:
    """Log probabilities to report, [N, V], of the `raw` or the `processed` rows."""
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
    logits: Tensor, prefixes: Sequence[Prefix], *, ranking: bool
) -> tuple[Tensor, frozenset[int]]:
    """Warp as `warp` does, and return the indices of rows that leave no token possible instead of raising.

    Those rows hold no distribution. A drafter asks about prefixes that the target may never reach,
    so a mask hook that fails allows nothing there.

    Args:
        ranking: give greedy requests softer rows than one-hot ones, which would rank all tokens but
            the first alike.
    """
    probs, flags = _warp(logits, prefixes, lenient=True, ranking=ranking)
    if flags is None:
        return probs, frozenset()
    on_host = flags.tolist()
    if _BROKEN in on_host:
        raise DistributionError(BROKEN)
    return probs, frozenset(row for row, flag in enumerate(on_host) if flag)


def _warp(
    logits: Tensor, prefixes: Sequence[Prefix], *, lenient: bool, ranking: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The probabilities and one flag per row; None instead of flags if all rows are known to be fine."""
    scores = adjusted(logits, prefixes, lenient=lenient)
    if _are_alike(prefixes):
        return _distributions(scores, _settings(prefixes[0].params, ranking))
    groups: dict[Warp, list[int]] = defaultdict(list)
    for row, prefix in enumerate(prefixes):
        groups[_settings(prefix.params, ranking)].append(row)
    probs = torch.empty_like(scores)
    flags = torch.zeros(len(scores), dtype=torch.int8, device=scores.device)
    for settings, rows in groups.items():
        probs[rows], some = _distributions(scores[rows], settings)
        if some is not None:
            flags[rows] = some
    return probs, flags


def _are_alike(prefixes: Sequence[Prefix]) -> bool:
    """True if all rows have the same parameters, as those of one request have."""
    first = prefixes[0].params
    return all(prefix.params is first for prefix in prefixes)


def _settings(params: SamplingParams, ranking: bool) -> Warp:
    return _FOR_RANKING if ranking and params.greedy else params.warp


def _distributions(scores: Tensor, settings: Warp) -> tuple[Tensor, Tensor | None]:
    """The probabilities of scores [N, V] under the same settings, and one flag per row."""
    if native.takes(scores):
        probs, empty_rows, broken_rows = native.warp(scores, *settings)
        if not empty_rows and not broken_rows:
            return probs, None
        flags = torch.zeros(len(scores), dtype=torch.int8)
        flags[empty_rows], flags[broken_rows] = _EMPTY, _BROKEN
        return probs, flags
    largest = scores.amax(dim=-1, keepdim=True)
    empty, fine = largest == -torch.inf, torch.isfinite(largest)
    flags = torch.where(fine, _FINE, torch.where(empty, _EMPTY, _BROKEN)).to(torch.int8)
    # Rows that are not distributions are replaced by rows that can be computed with, and flagged.
    scores = scores.masked_fill(~fine, 0.0) - largest.masked_fill(~fine, 0.0)
    return _shape(scores, settings), flags.flatten()


def _shape(scores: Tensor, settings: Warp) -> Tensor:
    """Apply temperature, top-k, top-p and min-p to scores [N, V] whose largest is 0 in every row."""
    if settings.greedy:
        return torch.zeros_like(scores).scatter_(1, scores.argmax(-1, keepdim=True), 1.0)
    scores = scores / settings.temperature
    if 0 < settings.top_k < scores.shape[-1]:
        smallest = scores.topk(settings.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    probs = scores.softmax(-1)
    if settings.top_p < 1.0:
        probs = _nucleus(probs, settings.top_p)
    if settings.min_p > 0.0:
        probs = probs.masked_fill(probs < settings.min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the most likely tokens until their sum reaches `top_p` (Holtzman et al., arXiv 1904.09751)."""
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    probs = torch.zeros_like(probs).scatter_(1, ids, kept)
    return probs / probs.sum(-1, keepdim=True)
