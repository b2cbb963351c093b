"""A caller's choice of speculation: a config, its fields, names, or complete parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from forerun.contracts import Drafter, Policy
from forerun.engine.compatibility import check_part
from forerun.engine.config import SpeculativeConfig
from forerun.engine.pairs import choose
from forerun.errors import ConfigError, shown

logger = logging.getLogger(__name__)

Speculative = SpeculativeConfig | Mapping[str, object] | bool


@dataclass(frozen=True)
class Speculation:
    """The choice of config, drafter and policy.

    Args:
        config: None decodes plainly.
        drafter, policy: complete parts; None if the config names them.
    """

    config: SpeculativeConfig | None
    drafter: Drafter | None = None
    policy: Policy | None = None

    @classmethod
    def of(
        cls,
        speculative: Speculative,
        drafter: str | Drafter | None,
        policy: str | Policy | None,
        target: str,
    ) -> Speculation:
        """The choice that a caller asks for, with open parts filled in.

        Args:
            speculative: a config, its fields, or True for the defaults.
            drafter, policy: names or parts.
            target: the target as the user named it.

        Raises:
            ConfigError: for values that contradict each other or have a wrong type.
            UnknownNameError: for a name that does not exist.
        """
        if speculative is False:
            for name, part in (("drafter", drafter), ("policy", policy)):
                if part is not None:
                    raise ConfigError(
                        f"speculative is False, and {name} is {shown(part)}; leave one out."
                    )
            return cls(None)
        config = _config(speculative)
        if isinstance(drafter, str):
            if "/" in drafter:
                raise ConfigError(
                    f"drafter is {drafter!r}, which is no method; a draft model is named by "
                    f"speculative={{'model': {drafter!r}}}."
                )
            _refuse_both("drafter", drafter, "method", config.method)
            config = replace(config, method=drafter)
        if isinstance(policy, str):
            _refuse_both("policy", policy, "policy", _unless_default(config.policy))
            config = replace(config, policy=policy)
        own_policy = None if isinstance(policy, str) else policy
        check_part("policy", own_policy)
        if drafter is None or isinstance(drafter, str):
            choice = choose(config, target)
            if choice.note:
                logger.warning("%s", choice.note)
            return cls(choice.config, None, own_policy)
        check_part("drafter", drafter)
        for name in ("method", "model", "revision"):
            _refuse_both("drafter", shown(drafter), name, getattr(config, name))
        return cls(config, drafter, own_policy)


def _config(speculative: Speculative) -> SpeculativeConfig:
    if speculative is True:
        return SpeculativeConfig()
    if isinstance(speculative, Mapping):
        return SpeculativeConfig.from_dict(speculative)
    if not isinstance(speculative, SpeculativeConfig):
        raise ConfigError(
            f"speculative is {shown(speculative)}; it must be a SpeculativeConfig, a mapping of its "
            "fields, True or False."
        )
    return speculative


def _refuse_both(name: str, value: str, field: str, known: str | None) -> None:
    if known not in (None, value):
        raise ConfigError(
            f"{name} is {value}, and the config's {field} is {known!r}; leave one of them out."
        )


def _unless_default(policy: str) -> str | None:
    return None if policy == SpeculativeConfig().policy else policy
