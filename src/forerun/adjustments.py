"""Changes to logits before they are warped: penalties, logit bias, bans and masks.

Each change depends on the tokens before a row, drafted ones included, as in plain decoding.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.core import Request
from forerun.errors import ConfigError, shown
from forerun.params import SamplingParams

_MASKS = (
    "it must return True or False (or 1 or 0) for each token, the ids of the allowed tokens, or None for "
    "all. Of a mask that is added to logits (0 and -inf) return `mask == 0`."
)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The tokens before a row: the committed tokens of a request and the drafted ones after them."""

    request: Request
    drafted: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def position(self) -> int:
        """Position of the token that the row predicts."""
        return len(self.request) + len(self.drafted)


@dataclass(frozen=True, slots=True)
class History:
    """Tokens that occur in a request, bool [V], and their counts in its output, [V]."""

    seen: Tensor
    output_counts: Tensor

    @classmethod
    def of(cls, request: Request, row: Tensor) -> History:
        ids = torch.tensor(request.token_ids, dtype=torch.long, device=row.device)
        seen = torch.zeros_like(row, dtype=torch.bool)
        seen[ids] = True
        output = ids[request.num_prompt_tokens :]
        return cls(seen, torch.bincount(output, minlength=len(row)).to(row.dtype))

    def after(self, drafted: tuple[int, ...]) -> History:
        if not drafted:
            return self
        ids = torch.tensor(drafted, dtype=torch.long, device=self.seen.device)
        ones = torch.ones_like(ids, dtype=self.output_counts.dtype)
        counts = self.output_counts.index_add(0, ids, ones)
        return History(self.seen.index_fill(0, ids, True), counts)


def adjust(row: Tensor, prefix: Prefix, histories: dict[int, History], lenient: bool) -> None:
    """Change a row of logits [V] in place as the request asks: penalties, bias and bans, masks.

    Args:
        row: the logits.
        prefix: the tokens before the row.
        histories: the history of each request, kept from row to row.
        lenient: a mask hook that fails allows nothing instead of raising.
    """
    if prefix.params.penalizes:
        _penalize(row, prefix, histories)
    _bias_and_ban(row, prefix.params)
    if prefix.params.mask is None:
        return
    try:
        _mask(row, prefix)
    except Exception:
        if not lenient:
            raise
        row.fill_(-torch.inf)


def _penalize(row: Tensor, prefix: Prefix, histories: dict[int, History]) -> None:
    params, request = prefix.params, prefix.request
    if request.request_id not in histories:
        histories[request.request_id] = History.of(request, row)
    history = histories[request.request_id].after(prefix.drafted)
    factor = params.repetition_penalty
    if factor != 1.0:
        penalized = torch.where(row > 0, row / factor, row * factor)
        row.copy_(torch.where(history.seen, penalized, row))
    if params.presence_penalty or params.frequency_penalty:
        counts = history.output_counts
        row -= params.presence_penalty * (counts > 0) + params.frequency_penalty * counts


def _bias_and_ban(row: Tensor, params: SamplingParams) -> None:
    if params.logit_bias:
        row[list(params.logit_bias)] += torch.tensor(
            list(params.logit_bias.values()), dtype=row.dtype, device=row.device
        )
    if params.banned_token_ids:
        row[list(params.banned_token_ids)] = -torch.inf
    if params.allowed_token_ids is not None:
        allowed = torch.zeros_like(row, dtype=torch.bool)
        allowed[list(params.allowed_token_ids)] = True
        row.masked_fill_(~allowed, -torch.inf)


def _mask(row: Tensor, prefix: Prefix) -> None:
    assert prefix.params.mask is not None
    # A copy, so that a hook cannot change the request's tokens.
    mask = prefix.params.mask(list(prefix.request.token_ids), prefix.drafted)
    if mask is not None:
        row.masked_fill_(~_allowed(mask, row), -torch.inf)


def _allowed(mask: Any, row: Tensor) -> Tensor:
    """The tokens that a mask hook allows, bool [V]; the hook returns an entry for each token, or ids.

    Raises:
        ConfigError: for anything else, such as a mask to be added to logits.
    """
    try:
        given = torch.as_tensor(list(mask) if isinstance(mask, Set) else mask, device=row.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the mask hook returned {shown(mask)}; {_MASKS}") from error
    if given.is_floating_point() and given.numel():
        raise ConfigError(f"the mask hook returned {given.dtype} numbers; {_MASKS}")
    if given.shape == row.shape and (given.dtype == torch.bool or bool(((given | 1) == 1).all())):
        return given.bool()
    ids = given.long()
    is_list = given.dtype != torch.bool and ids.ndim == 1 and len(set(ids.tolist())) == len(ids)
    if not is_list or bool(((ids < 0) | (ids >= len(row))).any()):
        raise ConfigError(
            f"the mask hook returned {given.dtype} of shape {list(given.shape)} that are not ids of "
            f"{len(row)} tokens; {_MASKS}"
        )
    return torch.zeros_like(row, dtype=torch.bool).index_fill_(0, ids, True)
