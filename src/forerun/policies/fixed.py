"""The same number of tokens every round."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core import Draft, Plan, Request, Verdict
from forerun.options import NoOptions


class FixedPolicy:
    """Draft `num_speculative_tokens` in every round."""

    name = "fixed"
    options = NoOptions

    def __init__(self, num_speculative_tokens: int, options: NoOptions | None = None) -> None:
        self.num_speculative_tokens = num_speculative_tokens

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        return [Plan(self.num_speculative_tokens) for _ in requests]

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        seconds: float,
    ) -> None:
        """A fixed length learns nothing."""

    def release(self, request: Request) -> None:
        """There is nothing to forget."""
