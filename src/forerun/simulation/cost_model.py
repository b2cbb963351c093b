"""Cost model of speculation: the time of drafting rounds against that of plain rounds.

Costs of single forwards come from a roofline (`RooflineCosts`), for hardware that is not at hand, or from
a table of measurements (`MeasuredCosts`). All other costs follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from forerun.errors import ConfigError
from forerun.options import check
from forerun.simulation.measured_costs import MeasuredCosts
from forerun.simulation.roofline import RooflineCosts
from forerun.theory import inputs
from forerun.theory.formulas import expected_tokens, speedup
from forerun.theory.inputs import Floats, Lengths, together

__all__ = ["ForwardCosts", "MeasuredCosts", "RooflineCosts", "RoundCosts", "WindowedCosts"]

_LENGTHS = range(1, 17)
_LONGEST_CONTEXT = 1 << 24
_MOST_REQUESTS = 1 << 20


class ForwardCosts(Protocol):
    """Interface for the costs of a model's forward passes."""

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of a forward.

        Args:
            num_tokens: new tokens of each request.
            batch_size: number of requests.
            context: tokens of each request in the cache.
        """


@dataclass(frozen=True)
class WindowedCosts:
    """Costs of forwards that read only a window of their context, as in drafting by self_sparse.

    Args:
        whole: costs of forwards that read the whole context.
        window: most tokens of context that a forward reads.
    """

    whole: ForwardCosts
    window: int

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of a forward; see `ForwardCosts.seconds`."""
        return self.whole.seconds(num_tokens, batch_size, np.minimum(context, self.window))


@dataclass(frozen=True)
class RoundCosts:
    """Costs of rounds with a target and a drafter, and the gain of speculation.

    A drafting round consists of `length` forwards of the draft model with one token per request, and one
    forward of the target with `length + 1` tokens. All requests in a batch draft the same length.

    Args:
        target: costs of the target's forwards.
        draft: costs of the draft model's forwards. Or a number: time of one drafted token / time of a
            plain round, 0 for drafts that cost nothing, as from prompt lookup.

    Raises:
        ConfigError: for a ratio below zero.
    """

    target: ForwardCosts
    draft: ForwardCosts | float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.draft, (int, float)):
            check("draft", self.draft, float, ge=0.0, le=1e6)

    def plain_seconds(self, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of a plain round: one token for each request."""
        return self.target.seconds(1, batch_size, context)

    def draft_seconds(self, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of drafting one token for each request."""
        if isinstance(self.draft, (int, float)):
            return np.asarray(self.draft * self.plain_seconds(batch_size, context))
        return self.draft.seconds(1, batch_size, context)

    def round_seconds(self, length: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of a round that drafts `length` tokens for each request; 0 for a plain round."""
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
        """Tokens per second with / without speculation: `formulas.speedup` at these costs.

        Args:
            acceptance: probability that a tested token is accepted, independently of the others.
            length: tokens drafted per round.
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
        """Tokens per second of all requests together; length 0 is plain decoding."""
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

    def break_even_context(
        self,
        acceptance: float,
        batch_size: int = 1,
        *,
        lengths: ArrayLike = _LENGTHS,
        most: int = _LONGEST_CONTEXT,
    ) -> int | None:
        """The shortest context at which some length makes decoding faster; None if none up to `most` does.

        Drafts from a window pay above some context.
        """
        contexts = np.unique(np.geomspace(1, most, 256).astype(np.int64))

        def pays(context: ArrayLike) -> Floats:
            gains = self.best(acceptance, batch_size, context, lengths=lengths)[1]
            return np.asarray(gains > 1.0 + 1e-9)

        paying = np.flatnonzero(pays(contexts))
        if not len(paying):
            return None
        high = int(contexts[paying[0]])
        low = int(contexts[paying[0] - 1]) if paying[0] else -1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if pays(middle) else (middle, high)
        return high

    def losing_batches(
        self,
        acceptance: float,
        context: int = 0,
        *,
        lengths: ArrayLike = _LENGTHS,
        most: int = 1024,
    ) -> list[tuple[int, int]]:
        """Ranges of batch sizes up to `most` at which no length makes decoding faster.

        Speculation stops paying when verification becomes bound by arithmetic. It can pay again with long
        contexts, where reading the cache takes most of the time (arXiv 2408.11049), and with experts,
        when a plain round reads all of them anyway.
        """
        most = check("most", most, int, ge=1, le=_MOST_REQUESTS)
        batches = np.arange(1, most + 1)
        loses = self.best(acceptance, batches, context, lengths=lengths)[1] <= 1.0
        edges = np.flatnonzero(np.diff(np.concatenate(([False], loses, [False])).astype(int)))
        return [(int(a) + 1, int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
