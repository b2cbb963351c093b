"""How far to speculate, or not at all: decided from the past alone."""

from __future__ import annotations

from typing import Any

from forerun import registry
from forerun.contracts import Policy
from forerun.policies.adaptive import AdaptivePolicy
from forerun.policies.fixed import FixedPolicy
from forerun.policies.monitor import Monitor

GROUP = "forerun.policies"

POLICIES: dict[str, Any] = {
    "fixed": FixedPolicy,
    "adaptive": AdaptivePolicy,
}


def policy_names() -> list[str]:
    """All names that `make_policy` knows."""
    return registry.names(POLICIES, GROUP)


def make_policy(name: str, num_speculative_tokens: int, monitored: bool = True) -> Policy:
    """The policy called `name`, watched by a monitor unless that is switched off.

    Raises:
        UnknownNameError: listing the policies.
    """
    policy: Policy = registry.find("policy", name, POLICIES, GROUP)(num_speculative_tokens)
    return Monitor(policy) if monitored else policy
