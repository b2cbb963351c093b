"""A policy whose draft length follows each request's own acceptance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from forerun.core import Draft, Plan, Request, RoundTimes, Verdict
from forerun.errors import ConfigError
from forerun.policies.base import USUAL_LENGTH, BasePolicy
from forerun.theory.adaptive import AdaptiveLength, AdaptiveLimits


class AdaptivePolicy(BasePolicy):
    """Grow and shrink each request's length by `theory.adaptive.AdaptiveLength`.

    Args:
        num_speculative_tokens: length that a request starts with; None is `USUAL_LENGTH`.
        limits: limits of the rule.

    Raises:
        ConfigError: for a length outside the limits.
    """

    name = "adaptive"
    options = AdaptiveLimits

    def __init__(
        self, num_speculative_tokens: int | None = None, limits: AdaptiveLimits | None = None
    ) -> None:
        limits = limits or AdaptiveLimits()
        shortest, longest = limits.shortest_draft, limits.longest_draft
        if num_speculative_tokens is None:
            num_speculative_tokens = min(max(USUAL_LENGTH, shortest), longest)
        if not shortest <= num_speculative_tokens <= longest:
            raise ConfigError(
                f"num_speculative_tokens is {num_speculative_tokens}; under policy 'adaptive' "
                f"it must lie in [{shortest}, {longest}], or use policy 'fixed'."
            )
        self._lengths: defaultdict[int, AdaptiveLength] = defaultdict(
            lambda: AdaptiveLength(num_speculative_tokens, limits)
        )

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        return [Plan(self._lengths[request.request_id].length) for request in requests]

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
    ) -> None:
        for request, draft, verdict in zip(requests, drafts, verdicts, strict=True):
            if len(draft) and not draft.forced:
                self._lengths[request.request_id].observe(draft.tree.depth, verdict.num_accepted)

    def release(self, request: Request) -> None:
        self._lengths.pop(request.request_id, None)
