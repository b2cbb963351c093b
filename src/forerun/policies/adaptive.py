"""A length for each sequence that follows its own acceptance."""

from __future__ import annotations

from collections.abc import Sequence as Several

from forerun.core import Draft, Plan, Sequence, Verdict
from forerun.theory.adaptive import AdaptiveLength


class AdaptivePolicy:
    """Grow and shrink each sequence's length by `theory.adaptive.AdaptiveLength`.

    Args:
        num_speculative_tokens: the length that a sequence starts with, within the rule's limits.
    """

    name = "adaptive"

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self._lengths: dict[int, AdaptiveLength] = {}

    def plan(self, sequences: Several[Sequence]) -> list[Plan]:
        return [Plan(self._length_of(sequence).length) for sequence in sequences]

    def observe(
        self,
        sequences: Several[Sequence],
        drafts: Several[Draft],
        verdicts: Several[Verdict],
        seconds: float,
    ) -> None:
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            if len(draft):
                self._length_of(sequence).observe(max(draft.depths) + 1, verdict.num_accepted)

    def release(self, sequence: Sequence) -> None:
        self._lengths.pop(sequence.request_id, None)

    def _length_of(self, sequence: Sequence) -> AdaptiveLength:
        start = AdaptiveLength(self.num_speculative_tokens)
        return self._lengths.setdefault(sequence.request_id, start)
