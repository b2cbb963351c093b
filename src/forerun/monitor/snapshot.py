"""Rounds as a monitor records them, and their sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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


class RoundCounts(NamedTuple):
    """One round of a batch with its sums; times that are not known are None."""

    rows: tuple[RequestCounts, ...]
    drafted: int
    tested: int
    accepted: int
    emitted: int
    draft_seconds: float | None
    target_seconds: float | None
    verify_seconds: float | None
    seconds: float | None

    @classmethod
    def of(
        cls,
        rows: tuple[RequestCounts, ...],
        draft: float | None,
        target: float | None,
        verify: float | None,
        seconds: float | None,
    ) -> RoundCounts:
        """A round with its usable times; one unusable time leaves the whole round untimed."""
        drafted = sum(row.drafted for row in rows)
        stages = [value if usable(value) else None for value in (draft, target, verify)]
        gap = any(
            value is not None and not usable(value) for value in (draft, target, verify, seconds)
        )
        verified = target is not None or verify is not None
        if seconds is None and verified and (draft is not None or not drafted):
            seconds = sum(value for value in stages if value is not None)
        tested, accepted = sum(row.tested for row in rows), sum(row.accepted for row in rows)
        emitted = sum(row.emitted for row in rows)
        whole = None if gap else seconds
        return cls(rows, drafted, tested, accepted, emitted, stages[0], stages[1], stages[2], whole)


def usable(seconds: float | None) -> bool:
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
    plain_seconds: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, rounds: Iterable[RoundCounts], plain_seconds: Mapping[int, float]) -> Snapshot:
        """A snapshot of the given rounds."""
        made = cls(plain_seconds=dict(plain_seconds))
        for done in rounds:
            made.add(done)
        return made

    def copy(self, plain_seconds: Mapping[int, float]) -> Snapshot:
        """A copy of the sums with other times of plain decoding."""
        return replace(deepcopy(self), plain_seconds=dict(plain_seconds))

    def add(self, done: RoundCounts) -> None:
        """Add one round."""
        stats, tested = self.stats, self.num_tested_tokens_per_pos
        for row in done.rows:
            stats.count_tokens(*row)
            tested += [0] * (row.depth - len(tested))
            for position in range(row.tested):
                tested[position] += 1
        stats.draft_seconds += done.draft_seconds or 0.0
        stats.target_seconds += done.target_seconds or 0.0
        stats.verify_seconds += done.verify_seconds or 0.0
        stats.seconds += done.seconds or 0.0
        size = len(done.rows)
        if done.seconds is None:
            self.num_untimed_rounds += 1
        elif done.drafted:
            self.timed_tokens[size] = self.timed_tokens.get(size, 0) + done.emitted
            self.timed_seconds[size] = self.timed_seconds.get(size, 0.0) + done.seconds

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
        sizes = self._sizes
        if not sizes:
            return None
        return sum(self._plainly(size) - self.timed_seconds[size] for size in sizes)

    @property
    def speedup(self) -> float | None:
        """Plain decoding's time / time of the timed rounds that drafted; None if plain time is unknown."""
        spent = sum(self.timed_seconds[size] for size in self._sizes)
        return sum(map(self._plainly, self._sizes)) / spent if spent else None

    @property
    def _sizes(self) -> list[int]:
        return [size for size in self.timed_seconds if size in self.plain_seconds]

    def _plainly(self, size: int) -> float:
        return self.timed_tokens[size] * self.plain_seconds[size]

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

    def line(self) -> str:
        """The statistics as one line of a log; times are per round."""
        stats = self.stats
        rounds = stats.num_target_forwards
        parts = [f"{rounds} rounds", f"{stats.num_drafts} drafted"]
        if rounds:
            parts.append(f"{stats.num_emitted_tokens / rounds:.2f} tokens a round")
        if stats.num_drafts:
            shares = " ".join(f"{share:.2f}" for share in self.acceptance_rate_per_pos)
            parts.append(f"accepted {stats.acceptance_rate:.2f} of the drafted ({shares})")
        if rounds and stats.seconds:
            verifying = stats.target_seconds + stats.verify_seconds
            parts.append(f"draft {1e3 * stats.draft_seconds / rounds:.1f} ms")
            parts.append(f"verify {1e3 * verifying / rounds:.1f} ms")
        if self.speedup is not None:
            parts.append(f"{self.speedup:.2f} x plain, {self.seconds_saved:+.2f} s saved")
        return "speculation: " + ", ".join(parts)
