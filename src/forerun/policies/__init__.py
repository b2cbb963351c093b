"""How far to speculate, or not at all: decided from the past alone.

A policy's class declares its `options` and is made from `num_speculative_tokens` and these.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from forerun.contracts import Policy
from forerun.options import pick
from forerun.policies.adaptive import AdaptivePolicy
from forerun.policies.cost_aware import CostAwarePolicy
from forerun.policies.fixed import FixedPolicy
from forerun.registry import Registry

POLICIES = Registry(
    "policy",
    "forerun.policies",
    {"auto": CostAwarePolicy, "fixed": FixedPolicy, "adaptive": AdaptivePolicy},
    with_options=True,
)


def make_policy(
    name: str,
    num_speculative_tokens: int | None,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> Policy:
    """The policy called `name`.

    Args:
        values: options by name, its own among others.

    Raises:
        UnknownNameError: listing the policies.
        ConfigError: for a length that the policy does not allow.
    """
    kind = POLICIES.find(name)
    policy: Policy = kind(num_speculative_tokens, pick(kind.options, values))
    return policy
