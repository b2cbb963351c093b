"""Costs of rounds by stage, and the gain of speculation at them.

The stages' costs come from a roofline (`RooflineCosts`), for hardware that is not at hand, or from tables of
measurements (`CostTable`). All other costs follow from them.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from forerun.errors import ConfigError
from forerun.options import check
from forerun.theory import inputs
from forerun.theory.formulas import expected_tokens
from forerun.theory.inputs import Floats, Ints, together

LENGTHS = range(1, 17)
"""Lengths that are tried unless others are named."""


class Costs(Protocol):
    """Interface for the costs of a model's forward passes, or of a stage of a round."""

    def seconds(self, num_tokens: Any, batch_size: Any, context: Any) -> Any:
        """Seconds: a number for numbers, or an array for arrays.

        Args:
            num_tokens: new tokens of each request.
            batch_size: number of requests.
            context: tokens of each request in the cache.
        """


@dataclass(frozen=True)
class _Chain:
    """Drafts by a model that runs one token after another."""

    model: Costs

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Any:
        return (np.asarray(num_tokens) - 1) * self.model.seconds(1, batch_size, context)


@dataclass(frozen=True)
class _Share:
    """Forwards that take a share of the target's forward of one token."""

    target: Costs
    share: float

    def seconds(self, num_tokens: Any, batch_size: Any, context: Any) -> Any:
        return self.share * self.target.seconds(1, batch_size, context)


class _Free:
    def seconds(self, num_tokens: Any, batch_size: Any, context: Any) -> Any:
        return 0.0


FREE = _Free()
"""A stage that takes no time."""


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
class RoundCosts:
    """Costs of rounds with a target and a drafter by stage, and the gain of speculation.

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
    verify: Costs = FREE
    host: Costs = FREE
    first_draft: float = 0.0
    prefill: tuple[float, float] = (0.0, 0.0)
    plain_prefill: float = 1.0

    @classmethod
    def of_models(cls, target: Costs, draft: Costs | float = 0.0) -> RoundCosts:
        """Costs of rounds that take nothing but forwards: one for each drafted token, and the target's.

        Args:
            target: costs of the target's forwards.
            draft: costs of the draft model's forwards. Or a number: time of one drafted token / time of a
                plain round, 0 for drafts that cost nothing, as from prompt lookup.

        Raises:
            ConfigError: for a ratio below zero.
        """
        if isinstance(draft, (int, float)):
            ratio = check("draft", draft, float, ge=0.0, le=1e6)
            draft = _Share(target, ratio) if ratio else FREE
        return cls(FREE if draft is FREE else _Chain(draft), target, target)

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

    def round_seconds(self, length: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of a round that drafts `length` tokens for each request."""
        drafted = inputs.lengths("length", length)
        return np.asarray(self.round(drafted, batch_size, context).total)

    def speedup(
        self,
        acceptance: ArrayLike,
        length: ArrayLike,
        batch_size: ArrayLike = 1,
        context: ArrayLike = 0,
    ) -> Floats:
        """Tokens per second with / without speculation: `formulas.speedup` at these costs.

        Args:
            acceptance: probability that a tested token is accepted, independently of the others.
            length: tokens drafted per round.
        """
        plain = self.plain_seconds(batch_size, context)
        tokens = expected_tokens(acceptance, length)
        return np.asarray(tokens * plain / self.round_seconds(length, batch_size, context))

    def best(
        self,
        acceptance: ArrayLike,
        batch_size: ArrayLike = 1,
        context: ArrayLike = 0,
        *,
        lengths: ArrayLike = LENGTHS,
    ) -> tuple[Ints, Floats]:
        """The best of some lengths and its speed-up, which is below 1 if speculation loses.

        The first of equally good lengths is returned.

        Raises:
            ConfigError: for numbers out of range, no lengths, or a length below 1.
        """
        tried = inputs.lengths("lengths", lengths, shortest=1)
        if tried.ndim != 1 or not tried.size:
            raise ConfigError("there are no lengths; give at least one.")
        alpha, batch, cached = (
            array[..., None]
            for array in together(*map(np.asarray, (acceptance, batch_size, context)))
        )
        gains = self.speedup(alpha, tried, batch, cached)
        index = gains.argmax(axis=-1)
        return tried[index], np.take_along_axis(gains, index[..., None], axis=-1)[..., 0]
