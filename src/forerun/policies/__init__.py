"""Policies: they decide from the past alone how far to speculate, or not at all.

A policy's class declares its `options` and is made from `num_speculative_tokens` and these.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from forerun.contracts import Policy
from forerun.options import pick
from forerun.policies.adaptive import AdaptivePolicy
from forerun.policies.auto import AutoPolicy
from forerun.policies.fixed import FixedPolicy
from forerun.registry import Registry

POLICIES = Registry(
    "policy",
    "forerun.policies",
    {"auto": AutoPolicy, "fixed": FixedPolicy, "adaptive": AdaptivePolicy},
    with_options=True,
)


def make_policy(
    name: str,
    num_speculative_tokens: int | None,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> Policy:
    """Make the policy called `name`.

    Args:
        name: name of the policy.
        num_speculative_tokens: length of drafts; its meaning depends on the policy.
        values: options by name, the policy's own among others.

    Raises:
        UnknownNameError: listing the policies.
        ConfigError: for a length that the policy does not allow.
    """
    kind = POLICIES.find(name)
    policy: Policy = kind(num_speculative_tokens, pick(kind.options, values))
    return policy
