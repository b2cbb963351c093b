"""Counters under the names that the serving engines share, after truncation at stops and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.core.draft import Draft, PlainReason, Verdict


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds of one round by stage.

    `draft` is drafting with all that belongs to it, `target` the target's forward, and `verify` the
    rest: verification, bookkeeping, learning.
    """

    draft: float
    target: float
    verify: float

    @property
    def total(self) -> float:
        return self.draft + self.target + self.verify


@dataclass
class Stats:
    """Counters of one request or of many.

    Args:
        num_drafts: rounds that drafted.
        num_draft_tokens: proposed tokens.
        num_accepted_tokens: proposed tokens that were emitted.
        num_accepted_tokens_per_pos: accepted tokens by depth in the draft.
        num_plain_rounds: rounds without a draft.
        num_plain_rounds_by_reason: plain rounds by the value of `PlainReason`.
        num_emitted_tokens: tokens of the output.
        num_emitted_in_drafts: emitted tokens of rounds that drafted.
        prompt_tokens: tokens of the prompt.
        num_cached_tokens: prompt tokens that the cache still held from an earlier request.
        prefill_seconds, draft_seconds, target_seconds, verify_seconds: time by stage; in a batch
            each request carries its share.
        seconds: time of all rounds, without prefill.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_plain_rounds: int = 0
    num_plain_rounds_by_reason: dict[str, int] = field(default_factory=dict)
    num_emitted_tokens: int = 0
    num_emitted_in_drafts: int = 0
    prompt_tokens: int = 0
    num_cached_tokens: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0

    def count(
        self, draft: Draft, verdict: Verdict, reason: PlainReason = PlainReason.NOTHING_FOUND
    ) -> None:
        """Count one round.

        Args:
            draft: the draft of the round.
            verdict: the outcome of its verification.
            reason: why the draft is empty, if it is.
        """
        emitted, accepted = len(verdict.token_ids), verdict.num_accepted
        self.count_tokens(len(draft), accepted, emitted, draft.tree.depth, reason)

    def count_tokens(
        self,
        drafted: int,
        accepted: int,
        emitted: int,
        depth: int,
        reason: PlainReason = PlainReason.NOTHING_FOUND,
    ) -> None:
        """Add one round by its numbers of tokens; `depth` is the depth of the draft."""
        self.num_emitted_tokens += emitted
        if not drafted:
            self.count_plain(reason)
            return
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_emitted_in_drafts += emitted
        self.num_accepted_tokens += accepted
        missing = depth - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos += [0] * max(0, missing)
        for position in range(accepted):
            self.num_accepted_tokens_per_pos[position] += 1

    def count_plain(self, reason: PlainReason) -> None:
        """Add one round without a draft, but not the tokens that it emitted."""
        self.num_plain_rounds += 1
        counts = self.num_plain_rounds_by_reason
        counts[reason.value] = counts.get(reason.value, 0) + 1

    @property
    def num_target_forwards(self) -> int:
        return self.num_drafts + self.num_plain_rounds

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None if nothing was drafted."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Emitted tokens per round that drafted, including the recovered or bonus token."""
        return _ratio(self.num_emitted_in_drafts, self.num_drafts)

    @property
    def tokens_per_target_forward(self) -> float | None:
        """Emitted tokens per round, plain rounds included; 1 for plain decoding."""
        return _ratio(self.num_emitted_tokens, self.num_target_forwards)

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens per second of rounds, without prefill."""
        return _ratio(self.num_emitted_tokens, self.seconds)

    @classmethod
    def total(cls, parts: Iterable[Stats]) -> Stats:
        """Sum of the counters of several requests."""
        sum_of = cls()
        for part in parts:
            sum_of._add(part)
        return sum_of

    def _add(self, other: Stats) -> None:
        longer = max(self.num_accepted_tokens_per_pos, other.num_accepted_tokens_per_pos, key=len)
        positions = [0] * len(longer)
        for counts in (self.num_accepted_tokens_per_pos, other.num_accepted_tokens_per_pos):
            for position, count in enumerate(counts):
                positions[position] += count
        reasons = Counter(self.num_plain_rounds_by_reason)
        reasons.update(other.num_plain_rounds_by_reason)
        for name, value in vars(other).items():
            if isinstance(value, int | float):
                setattr(self, name, getattr(self, name) + value)
        self.num_accepted_tokens_per_pos = positions
        self.num_plain_rounds_by_reason = dict(reasons)

    def as_dict(self) -> dict[str, Any]:
        """All counters and ratios, ready for JSON."""
        return {
            **asdict(self),
            "num_target_forwards": self.num_target_forwards,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "tokens_per_target_forward": self.tokens_per_target_forward,
            "tokens_per_second": self.tokens_per_second,
        }


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
