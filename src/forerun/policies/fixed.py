"""A policy that drafts equally many tokens in every round."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core import Plan, Request
from forerun.options import NoOptions
from forerun.policies.base import USUAL_LENGTH, BasePolicy


class FixedPolicy(BasePolicy):
    """Draft `num_speculative_tokens` in every round.

    Args:
        num_speculative_tokens: the length; None is `USUAL_LENGTH`.
    """

    name = "fixed"

    def __init__(
        self, num_speculative_tokens: int | None = None, options: NoOptions | None = None
    ) -> None:
        self.num_speculative_tokens = num_speculative_tokens or USUAL_LENGTH

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        return [Plan(self.num_speculative_tokens) for _ in requests]
