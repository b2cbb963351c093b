"""Rounds as a monitor records them, and their sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple, TypeGuard

from forerun.core import PlainReason, Stats


class RequestCounts(NamedTuple):
    """Token counts of one request in one round; `depth` is the depth of its draft."""

    drafted: int
    accepted: int
    emitted: int
    depth: int
    reason: PlainReason

    @property
    def tested(self) -> int:
        """Number of drafted tokens that were tested: the accepted ones and the rejected one, if any."""
        rejected = self.accepted < self.depth and self.emitted > self.accepted
        return self.accepted + rejected


@dataclass(frozen=True, slots=True)
class RecordedRound:
    """One round of a batch.

    Args:
        stats: counters of its requests, and the times that are known.
        size: number of its requests.
        tested: number of tested tokens by depth.
        seconds: time of the round; None if it is unknown or not usable.
    """

    stats: Stats
    size: int
    tested: list[int]
    seconds: float | None

    @classmethod
    def of(
        cls,
        rows: Iterable[RequestCounts],
        draft: float | None,
        target: float | None,
        verify: float | None,
        seconds: float | None,
    ) -> RecordedRound:
        """A round with its usable times; one unusable time leaves the whole round untimed."""
        rows, stats, tested = list(rows), Stats(), list[int]()
        for row in rows:
            stats.count_tokens(*row)
            below = [int(depth < row.tested) for depth in range(row.depth)]
            tested = list(map(sum, zip_longest(tested, below, fillvalue=0)))
        stages = [value if usable(value) else 0.0 for value in (draft, target, verify)]
        stats.draft_seconds, stats.target_seconds, stats.verify_seconds = stages
        verified = target is not None or verify is not None
        if seconds is None and verified and (draft is not None or not stats.num_drafts):
            seconds = sum(stages)
        if any(t is not None and not usable(t) for t in (draft, target, verify, seconds)):
            seconds = None
        stats.seconds = seconds or 0.0
        return cls(stats, len(rows), tested, seconds)


def usable(seconds: float | None) -> TypeGuard[float]:
    """True if a time is known, finite and not negative."""
    return seconds is not None and math.isfinite(seconds) and seconds >= 0.0


@dataclass
class Snapshot:
    """Sums and ratios of the rounds of a run or window.

    Args:
        stats: counters and ratios under the names of forerun's engine and the serving engines.
        num_tested_tokens_per_pos: drafted tokens, by depth, whose predecessors were all accepted.
        num_untimed_rounds: rounds whose time is not known or not usable.
        timed_tokens: tokens of the timed rounds that drafted, by number of requests in the round.
        timed_seconds: seconds of the same rounds, by number of requests in the round.
        plain_seconds: seconds per plain token by number of requests in a round, from the newest times.
    """

    stats: Stats = field(default_factory=Stats)
    num_tested_tokens_per_pos: list[int] = field(default_factory=list)
    num_untimed_rounds: int = 0
    timed_tokens: dict[int, int] = field(default_factory=dict)
    timed_seconds: dict[int, float] = field(default_factory=dict)
    plain_seconds: Mapping[int, float] = field(default_factory=dict)

    def copy(self, plain_seconds: Mapping[int, float]) -> Snapshot:
        """A copy of the sums with other times of plain decoding."""
        return replace(deepcopy(self), plain_seconds=plain_seconds)

    def add(self, done: RecordedRound) -> None:
        """Add one round."""
        self.stats = Stats.total((self.stats, done.stats))
        both = zip_longest(self.num_tested_tokens_per_pos, done.tested, fillvalue=0)
        self.num_tested_tokens_per_pos = list(map(sum, both))
        if done.seconds is None:
            self.num_untimed_rounds += 1
        elif done.stats.num_drafts:
            tokens, seconds = self.timed_tokens, self.timed_seconds
            tokens[done.size] = tokens.get(done.size, 0) + done.stats.num_emitted_tokens
            seconds[done.size] = seconds.get(done.size, 0.0) + done.seconds

    @property
    def acceptance(self) -> float | None:
        """Accepted / tested tokens, the alpha of the formulas.

        Unlike `acceptance_rate`, it does not depend on how many tokens are drafted beyond the first
        rejection.
        """
        tested = sum(self.num_tested_tokens_per_pos)
        return self.stats.num_accepted_tokens / tested if tested else None

    @property
    def acceptance_rate_per_pos(self) -> list[float]:
        """Share of drafts with at least k + 1 accepted tokens, by position k."""
        return [n / self.stats.num_drafts for n in self.stats.num_accepted_tokens_per_pos]

    @property
    def conditional_acceptance_per_pos(self) -> list[float | None]:
        """Share of the tested tokens that were accepted, by depth; None where none was tested."""
        accepted, tested = self.stats.num_accepted_tokens_per_pos, self.num_tested_tokens_per_pos
        return [a / t if t else None for a, t in zip(accepted, tested, strict=True)]

    @property
    def seconds_saved(self) -> float | None:
        """Seconds saved against plain decoding by the timed rounds that drafted; negative for a loss.

        None if no plain decoding was timed.
        """
        plain, spent = self._compared
        return plain - spent if spent else None

    @property
    def speedup(self) -> float | None:
        """Plain decoding's time / time of the timed rounds that drafted; None if plain time is unknown."""
        plain, spent = self._compared
        return plain / spent if spent else None

    @property
    def _compared(self) -> tuple[float, float]:
        """Seconds by plain decoding and as measured, over rounds of a size that was timed plainly."""
        sizes = self.timed_seconds.keys() & self.plain_seconds.keys()
        plain = sum(self.timed_tokens[size] * self.plain_seconds[size] for size in sizes)
        return plain, sum(self.timed_seconds[size] for size in sizes)

    def as_dict(self) -> dict[str, Any]:
        """All counters and ratios, ready for JSON."""
        return {
            **self.stats.as_dict(),
            "num_tested_tokens_per_pos": list(self.num_tested_tokens_per_pos),
            "num_untimed_rounds": self.num_untimed_rounds,
            "acceptance": self.acceptance,
            "acceptance_rate_per_pos": self.acceptance_rate_per_pos,
            "conditional_acceptance_per_pos": self.conditional_acceptance_per_pos,
            "seconds_saved": self.seconds_saved,
            "speedup": self.speedup,
        }
