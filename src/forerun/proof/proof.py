"""A proof: what was asked, what each part came to, and whether all of it holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from forerun.contracts import Verifier
from forerun.core import Exactness
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.proof.effort import Effort
from forerun.proof.enumeration import Enumerations, by_enumeration
from forerun.proof.equality import Equality, by_equality
from forerun.proof.setting import Setting, resolved_rule, with_rule
from forerun.proof.statistics import Statistics, by_statistics
from forerun.verification import RULES, make_rule

GREEDY_NOTE = "greedy output leaves nothing to chance: equality compares every token of it."
# From the strictest on.
_LEVELS = (Exactness.BITWISE, Exactness.DISTRIBUTIONAL, Exactness.APPROXIMATE)

Progress = Callable[[str, int, int], None]
"""Told the part that runs, how much of it is done, and of how much."""


@dataclass(frozen=True)
class Proof:
    """What a proof came to; a part that did not run is None.

    Args:
        level: what target, drafter and rule promise together, the weakest of them.
        rule: that verified.
        enumeration, statistics, equality: the parts.
        notes: why a part did not run, or what else there is to say.
        seconds: it took.
    """

    level: Exactness
    rule: str
    enumeration: Enumerations | None
    statistics: Statistics | None
    equality: Equality | None
    notes: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """No part found a defect, and nothing approximate took part."""
        parts = (self.enumeration, self.statistics, self.equality)
        ran = [part for part in parts if part is not None]
        return self.level is not Exactness.APPROXIMATE and all(part.passed for part in ran)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        content: dict[str, Any] = {
            "passed": self.passed,
            "level": self.level,
            "rule": self.rule,
            "enumeration": None,
            "statistics": None,
            "equality": None,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }
        if self.enumeration is not None:
            content["enumeration"] = _of_enumeration(self.enumeration)
        if self.statistics is not None:
            content["statistics"] = _of_statistics(self.statistics)
        if self.equality is not None:
            content["equality"] = _of_equality(self.equality)
        return content


def prove(
    engine: Engine,
    prompts: Several[list[int]],
    params: SamplingParams,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Proof:
    """Prove, as far as it can be proven, that an engine emits the target's own distribution.

    Args:
        engine: with a drafter, and the rule to prove. `auto` stands for the rule that it takes
            for requests without a seed.
        prompts: token ids; each must leave room for an output in the engine's context.
        params: how tokens are drawn.
        effort: how hard to try.
        progress: told of each part as it runs.

    Raises:
        ConfigError: for an engine without a drafter, or without room.
    """
    started = perf_counter()
    effort = effort or Effort()
    drafter = engine.drafter
    if drafter is None:
        raise ConfigError("there is nothing to prove about plain decoding; give a drafter.")
    _check_room(engine, prompts, effort)
    rule = resolved_rule(engine.config, drafter)
    engine = with_rule(engine, rule)
    own = engine.rules.get(rule) or make_rule(rule)
    notes = []
    statistics = None
    if "statistics" in effort.parts and params.greedy:
        notes.append(GREEDY_NOTE)
    elif "statistics" in effort.parts:
        setting = Setting(
            rule, params, effort.num_tokens, effort.output_tokens, effort.level, effort.seed
        )
        statistics = by_statistics(engine, prompts, setting, _of_part("statistics", progress))
    enumeration = equality = None
    if "enumeration" in effort.parts:
        enumeration = by_enumeration(_rules_to_enumerate(own), params)
    if "equality" in effort.parts:
        equality = by_equality(
            engine,
            prompts[: effort.equality_prompts],
            params,
            effort.output_tokens,
            effort.seed,
            _of_part("equality", progress),
        )
    return Proof(
        level=max(engine.target.exactness, drafter.exactness, own.exactness, key=_LEVELS.index),
        rule=rule,
        enumeration=enumeration,
        statistics=statistics,
        equality=equality,
        notes=tuple(notes),
        seconds=perf_counter() - started,
    )


def _rules_to_enumerate(own: Verifier) -> list[Verifier]:
    """The rule in use, and those that the engine takes besides it: for point masses and for seeds."""
    others = [RULES[name]() for name in ("token", "coupled") if name != own.name]
    return [own, *others]


def _check_room(engine: Engine, prompts: Several[list[int]], effort: Effort) -> None:
    if not prompts:
        raise ConfigError("a proof needs prompts; give at least one.")
    longest = max(len(prompt) for prompt in prompts)
    if longest + effort.output_tokens > engine.max_context:
        raise ConfigError(
            f"the longest prompt has {longest} tokens and outputs {effort.output_tokens}; "
            f"the context is {engine.max_context}. Shorten the prompts or the outputs."
        )


def _of_part(part: str, progress: Progress | None) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(part, done, total)


def _of_enumeration(part: Enumerations) -> dict[str, Any]:
    return {
        "passed": part.passed,
        "largest_deviation": _finite(part.largest_deviation),
        "bound": part.bound,
        "cases": part.cases,
        "seconds": part.seconds,
        "rules": [
            {
                "rule": one.rule,
                "passed": one.passed,
                "cases": one.found.cases,
                "sequences": one.found.sequences,
                "largest_deviation": _finite(one.found.largest_deviation),
                "worst_case": one.found.worst,
                "kinds": list(one.found.kinds),
            }
            for one in part.rules
        ],
    }


def _of_statistics(part: Statistics) -> dict[str, Any]:
    looks = [look for look in (part.first, part.second) if look is not None]
    return {
        "passed": part.passed,
        "level": part.level,
        "detection_limit": part.detection_limit,
        "looks": [{**asdict(look), "alarms": look.alarms(part.level)} for look in looks],
    }


def _of_equality(part: Equality) -> dict[str, Any]:
    return {
        "passed": part.passed,
        "seconds": part.seconds,
        "modes": [
            {**asdict(mode), "identical": mode.identical, "defects": mode.defects}
            for mode in part.modes
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
