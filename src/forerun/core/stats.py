"""What is counted: the names that the serving engines share, after truncation at stops and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.core.draft import Draft, PlainReason, Verdict


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds of one round by stage: drafting with all that belongs to it, the target's forward, and
    the rest: verification, bookkeeping, learning."""

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
        num_accepted_tokens_per_pos: the same by depth in the draft.
        num_plain_rounds: rounds without a draft.
        num_plain_rounds_by_reason: the same by the value of `PlainReason`.
        num_emitted_tokens: tokens of the output.
        num_emitted_in_drafts: those that came from rounds that drafted.
        prompt_tokens: tokens of the prompt.
        num_cached_tokens: those of them that the cache still held from an earlier request.
        prefill_seconds, draft_seconds, target_seconds, verify_seconds: time by stage; of a batch,
            each request carries its share.
        seconds: time of all rounds, prefill apart.
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
        """Add one round.

        Args:
            reason: why the draft is empty, where it is.
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
        """Add one round by its numbers of tokens; `depth` is that of the draft."""
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
        """Add one round without a draft, but not what it emitted."""
        self.num_plain_rounds += 1
        counts = self.num_plain_rounds_by_reason
        counts[reason.value] = counts.get(reason.value, 0) + 1

    @property
    def num_target_forwards(self) -> int:
        return self.num_drafts + self.num_plain_rounds

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None where nothing was drafted."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens emitted a round that drafted, the recovered or bonus token included."""
        return _ratio(self.num_emitted_in_drafts, self.num_drafts)

    @property
    def tokens_per_target_forward(self) -> float | None:
        """Tokens emitted a round, plain rounds included; 1 for plain decoding."""
        return _ratio(self.num_emitted_tokens, self.num_target_forwards)

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens a second of rounds, prefill apart."""
        return _ratio(self.num_emitted_tokens, self.seconds)

    @classmethod
    def total(cls, parts: Iterable[Stats]) -> Stats:
        """The sum over several requests."""
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
