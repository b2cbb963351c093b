"""Costs of recorded rounds by stage."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

from forerun.costs.rounds import Costs


@dataclass(frozen=True)
class Seconds:
    """Seconds of a round by stage, numbers or arrays."""

    draft: Any
    target: Any
    verify: Any
    host: Any

    @property
    def total(self) -> Any:
        """Seconds of the whole round."""
        return self.draft + self.target + self.verify + self.host

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(*map(operator.add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class StageCosts:
    """Costs of rounds with a target and a drafter by stage.

    Stages cost by verified tokens: in each request one more than drafted. All requests in a batch draft the
    same length.

    Args:
        draft: drafting, in rounds that draft.
        target: the target's forward.
        plain: plain rounds without a drafter.
        verify: verification.
        host: all else in a round; it costs the same for all numbers of tokens.
        first_draft: seconds per token of the context, once for each request that drafts.
        prefill: seconds per token of a prompt, and per pair of a token and one before it.
        plain_prefill: share of it that a prefill without a drafter takes.
    """

    draft: Costs
    target: Costs
    plain: Costs
    verify: Costs
    host: Costs
    first_draft: float = 0.0
    prefill: tuple[float, float] = (0.0, 0.0)
    plain_prefill: float = 1.0

    def prompt(self, num_tokens: int) -> float:
        """Seconds of the prefill of a prompt."""
        return self.prefill[0] * num_tokens + self.prefill[1] * num_tokens**2

    def plain_prompt(self, num_tokens: int) -> float:
        """Seconds of the prefill of a prompt without a drafter."""
        return self.plain_prefill * self.prompt(num_tokens)

    def drafting(self, length: Any, batch_size: Any, context: Any) -> Any:
        """Seconds of drafting `length` tokens for each request."""
        return self.draft.seconds(length + 1, batch_size, context)

    def verifying(self, length: Any, batch_size: Any, context: Any) -> Seconds:
        """Seconds of a round with drafts of `length` tokens, without drafting them."""
        at = (length + 1, batch_size, context)
        host = self.host.seconds(1, batch_size, 0)
        return Seconds(0.0, self.target.seconds(*at), self.verify.seconds(*at), host)

    def round(self, length: Any, batch_size: Any, context: Any, *, drafts: bool = True) -> Seconds:
        """Seconds of a round; `drafts`: drafting was asked for, even if it found nothing."""
        rest = self.verifying(length, batch_size, context)
        return replace(rest, draft=self.drafting(length, batch_size, context) if drafts else 0.0)

    def plain_seconds(self, batch_size: Any, context: Any) -> Any:
        """Seconds of a plain round: one token for each request."""
        return self.plain.seconds(1, batch_size, context)
