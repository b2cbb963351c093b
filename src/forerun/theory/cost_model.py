"""Whether speculation pays: the time of drafting rounds against that of plain ones.

Costs of single forwards come from a roofline (`RooflineCosts`), for hardware that one does not
have, or from a table of measurements (`MeasuredCosts`); everything else follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from forerun.checks import number, whole
from forerun.errors import ConfigError
from forerun.theory import inputs
from forerun.theory.formulas import expected_tokens, speedup
from forerun.theory.inputs import Floats, Lengths, together
from forerun.theory.measured_costs import MeasuredCosts
from forerun.theory.roofline import RooflineCosts

__all__ = ["ForwardCosts", "MeasuredCosts", "RooflineCosts", "RoundCosts"]

_LENGTHS = range(1, 17)
_MOST_SEQUENCES = 1 << 20


class ForwardCosts(Protocol):
    """What a forward pass of a model costs."""

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Of `num_tokens` new tokens in each of `batch_size` sequences of `context` tokens."""


@dataclass(frozen=True)
class RoundCosts:
    """What rounds cost, and so what speculation gains, with a target and a way to draft.

    A drafting round is `length` forwards of the draft model with one token a sequence, and one
    forward of the target with `length + 1`. Sequences in a batch all draft the same length.

    Args:
        target: costs of its forwards.
        draft: of the draft model's; or a number, the time of one drafted token over that of a
            plain round, 0 for drafts that cost nothing, as from prompt lookup.

    Raises:
        ConfigError: for a ratio below zero.
    """

    target: ForwardCosts
    draft: ForwardCosts | float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.draft, (int, float)):
            number(0.0, 1e6)("draft", self.draft)

    def plain_seconds(self, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Of a plain round: one token for each sequence."""
        return self.target.seconds(1, batch_size, context)

    def draft_seconds(self, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Of one drafted token for each sequence."""
        if isinstance(self.draft, (int, float)):
            return np.asarray(self.draft * self.plain_seconds(batch_size, context))
        return self.draft.seconds(1, batch_size, context)

    def round_seconds(self, length: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Of a round that drafts `length` tokens for each sequence; with 0 it is a plain one."""
        drafted = inputs.lengths("length", length)
        drafting = drafted * self.draft_seconds(batch_size, context)
        return np.asarray(drafting + self.target.seconds(drafted + 1, batch_size, context))

    def speedup(
        self,
        acceptance: ArrayLike,
        length: ArrayLike,
        batch_size: ArrayLike = 1,
        context: ArrayLike = 0,
    ) -> Floats:
        """Tokens a second with speculation over those without, `formulas.speedup` at these costs.

        Args:
            acceptance: probability that a drafted token is accepted, independently.
            length: tokens drafted a round.
        """
        plain = self.plain_seconds(batch_size, context)
        verification = self.target.seconds(
            inputs.lengths("length", length) + 1, batch_size, context
        )
        draft = self.draft_seconds(batch_size, context) / plain
        return np.asarray(
            speedup(acceptance, length, draft, verification_cost=verification / plain)
        )

    def tokens_per_second(
        self,
        acceptance: ArrayLike,
        length: ArrayLike,
        batch_size: ArrayLike = 1,
        context: ArrayLike = 0,
    ) -> Floats:
        """Of all sequences together; with length 0, those of plain decoding."""
        tokens = np.asarray(batch_size) * expected_tokens(acceptance, length)
        return np.asarray(tokens / self.round_seconds(length, batch_size, context))

    def best(
        self,
        acceptance: ArrayLike,
        batch_size: ArrayLike = 1,
        context: ArrayLike = 0,
        *,
        lengths: ArrayLike = _LENGTHS,
    ) -> tuple[Lengths, Floats]:
        """The best of some lengths, and its speed-up: below 1 where speculation loses.

        The first of equally good ones.

        Raises:
            ConfigError: for numbers out of range, no lengths, or one below 1.
        """
        tried = inputs.lengths("lengths", lengths, shortest=1)
        if tried.ndim != 1 or not tried.size:
            raise ConfigError("there are no lengths; give at least one.")
        alpha, batch, cached = (
            one[..., None] for one in together(*map(np.asarray, (acceptance, batch_size, context)))
        )
        found = self.speedup(alpha, tried, batch, cached)
        index = found.argmax(axis=-1)
        return tried[index], np.take_along_axis(found, index[..., None], axis=-1)[..., 0]

    def losing_batches(
        self,
        acceptance: float,
        context: int = 0,
        *,
        lengths: ArrayLike = _LENGTHS,
        most: int = 1024,
    ) -> list[tuple[int, int]]:
        """Ranges of batch sizes up to `most` at which none of the lengths makes decoding faster.

        Speculation stops paying where verification becomes bound by arithmetic. It can start again:
        with long contexts, where reading the cache outgrows everything (arXiv 2408.11049), and with
        experts, once a plain round reads them all anyway.
        """
        most = whole(1, _MOST_SEQUENCES)("most", most)
        batches = np.arange(1, most + 1)
        loses = self.best(acceptance, batches, context, lengths=lengths)[1] <= 1.0
        edges = np.flatnonzero(np.diff(np.concatenate(([False], loses, [False])).astype(int)))
        return [(int(a) + 1, int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
