"""The same number of tokens every round."""

from __future__ import annotations

from collections.abc import Sequence as Several

from forerun.core import Draft, Plan, Sequence, Verdict


class FixedPolicy:
    """Draft `num_speculative_tokens` in every round."""

    name = "fixed"

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens

    def plan(self, sequences: Several[Sequence]) -> list[Plan]:
        return [Plan(self.num_speculative_tokens) for _ in sequences]

    def observe(
        self,
        sequences: Several[Sequence],
        drafts: Several[Draft],
        verdicts: Several[Verdict],
        seconds: float,
    ) -> None:
        """A fixed length learns nothing."""

    def release(self, sequence: Sequence) -> None:
        """There is nothing to forget."""
