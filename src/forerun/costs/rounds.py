"""Costs of rounds, and the gain of speculation at them.

Forwards cost what a roofline (`RooflineCosts`) says, for hardware that is not at hand, or a table of
measurements (`CostTable`).
"""

from __future__ import annotations

from dataclasses import dataclass
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
class RoundCosts:
    """Costs of rounds with a target and a drafter, and the gain of speculation.

    A round verifies one token more than it drafts, in each request; all requests in a batch draft the same
    length.

    Args:
        draft: drafting, by verified tokens.
        target: the target's forward.
    """

    draft: Costs
    target: Costs

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
        return cls(FREE if draft is FREE else _Chain(draft), target)

    def drafting(self, length: Any, batch_size: Any, context: Any) -> Any:
        """Seconds of drafting `length` tokens for each request."""
        return self.draft.seconds(length + 1, batch_size, context)

    def plain_seconds(self, batch_size: Any, context: Any) -> Any:
        """Seconds of a plain round: one token for each request."""
        return self.target.seconds(1, batch_size, context)

    def round_seconds(self, length: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of a round that drafts `length` tokens for each request."""
        drafted = inputs.lengths("length", length)
        checking = self.target.seconds(drafted + 1, batch_size, context)
        return np.asarray(self.drafting(drafted, batch_size, context) + checking)

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
