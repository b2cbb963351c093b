"""A proof: its parts, their results, and whether all of them passed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from forerun.contracts import Verifier
from forerun.core import NO_HINTS, Exactness, Hints
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.proof.effort import MOST_PROMPTS, Effort
from forerun.proof.enumeration import Enumerations, by_enumeration
from forerun.proof.equality import SEEDED_RULES, Equality, by_equality
from forerun.proof.statistics import Statistics, by_statistics
from forerun.verification import AUTO, FOR_DRAWN, make_rule

GREEDY_NOTE = "greedy output leaves nothing to chance: equality compares every token of it."


@dataclass(frozen=True)
class Proof:
    """The result of a proof; a part that did not run is None.

    Args:
        level: exactness that the engine promises.
        rule: name of the rule in the engine's config.
        enumeration, statistics, equality: results of the parts.
        notes: sentences about parts that did not run.
        seconds: time of the whole proof.
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
        """True if no part found a defect, and neither rule nor drafter is approximate."""
        parts = (self.enumeration, self.statistics, self.equality)
        ran = [part for part in parts if part is not None]
        sound = bool(ran) and all(part.passed for part in ran)
        return sound and self.level is not Exactness.APPROXIMATE

    def as_dict(self) -> dict[str, Any]:
        """The whole result, ready for JSON."""
        content: dict[str, Any] = _finite(asdict(self))
        return {"passed": self.passed, **content}


def prove(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    effort: Effort | None = None,
) -> Proof:
    """Prove, as far as it can be proven, that an engine emits the target's own distribution.

    Args:
        engine: an engine with a drafter; it is observed unchanged, with any rule that it uses.
        prompts: token ids; each must leave room for an output in the engine's context.
        params: sampling parameters.
        effort: amount of work to do.

    Raises:
        ConfigError: for an engine without a drafter, without room, or with a compressed cache.
    """
    started = perf_counter()
    effort = effort or Effort()
    _check_engine(engine)
    _check_room(engine, prompts, effort)
    if params.greedy and set(effort.part) == {"statistics"}:
        raise ConfigError(f"the statistics have nothing to do: {GREEDY_NOTE}")
    rule = engine.config.rejection_sample_method
    hints = predictions(engine, prompts, params, effort)
    outputs = effort.outputs(params, hints)
    statistics = enumeration = equality = None
    if "statistics" in effort.part and not params.greedy:
        statistics = by_statistics(engine, prompts, outputs)
    if "enumeration" in effort.part:
        enumeration = by_enumeration(_rules_to_enumerate(engine), params)
    if "equality" in effort.part:
        count = effort.equality_prompts or MOST_PROMPTS
        left = max(effort.seconds - (perf_counter() - started), 0.0)
        few = replace(
            outputs, hints=hints[:count], seconds=None if effort.equality_prompts else left
        )
        equality = by_equality(engine, prompts[:count], few)
    return Proof(
        level=engine.exactness,
        rule=rule,
        enumeration=enumeration,
        statistics=statistics,
        equality=equality,
        notes=(
            *_notes(effort, params, rule),
            *_limited(effort, statistics, equality, len(prompts)),
        ),
        seconds=perf_counter() - started,
    )


def predictions(
    engine: Engine, prompts: Sequence[list[int]], params: SamplingParams, effort: Effort
) -> tuple[Hints, ...]:
    """Hints with predicted outputs, for a drafter that reads predictions; empty for other drafters.

    The predictions are plain greedy outputs of the prompts that the first look uses.
    """
    if engine.drafter is None or not engine.drafter.reads_predictions:
        return ()
    greedy = replace(
        params, temperature=0.0, max_tokens=effort.output_tokens, ignore_eos=True, stop=()
    )
    tokens = effort.num_tokens or 1
    used = max(math.ceil(tokens / effort.output_tokens), effort.equality_prompts or MOST_PROMPTS)
    hints = []
    for prompt in prompts[:used]:
        output = [event.token_id for event in engine.stream_plain(prompt, greedy)]
        hints.append(Hints(prediction=tuple(output)))
    return (*hints, *[NO_HINTS] * (len(prompts) - len(hints)))


def _rules_to_enumerate(engine: Engine) -> list[Verifier]:
    """All rules that the engine may use.

    `auto` uses several. A rule for drawn drafts leaves plain rounds and point masses to the token rule.
    """
    names = [engine.config.rejection_sample_method]
    if names == [AUTO]:
        names = ["token", *FOR_DRAWN, "coupled"]
    elif names[0] in FOR_DRAWN:
        names.append("token")
    return [engine.rules.get(name) or make_rule(name) for name in names]


def _notes(effort: Effort, params: SamplingParams, rule: str) -> Iterator[str]:
    if "statistics" in effort.part and params.greedy:
        yield GREEDY_NOTE
    if "equality" in effort.part and not params.greedy and rule not in SEEDED_RULES:
        yield (
            f"rule {rule} does not promise plain decoding's tokens for a seed; auto and coupled do."
        )


def _limited(
    effort: Effort, statistics: Statistics | None, equality: Equality | None, num_prompts: int
) -> Iterator[str]:
    """A note where the time has limited the amounts."""
    few, names = [], []
    if statistics is not None and effort.num_tokens is None:
        few.append(f"{statistics.first.num_tokens} tokens")
        names.append("num_tokens")
    if equality is not None and effort.equality_prompts is None:
        prompts = min(mode.prompts for mode in equality.modes)
        if prompts < min(MOST_PROMPTS, num_prompts):
            few.append(f"{prompts} prompts")
            names.append("equality_prompts")
    if few:
        yield (
            f"In {effort.seconds:g} seconds {' and '.join(few)} were tested; with more time (seconds), or "
            f"more by {' and '.join(names)}, smaller deviations are seen."
        )


def _check_engine(engine: Engine) -> None:
    if engine.drafter is None:
        raise ConfigError("there is nothing to prove about plain decoding; give a drafter.")
    if engine.compression.is_on:
        raise ConfigError(
            f"kv_method {engine.compression.kv_method!r} is approximate: what it evicts changes the "
            "output, so there is nothing to prove; leave it out."
        )


def _check_room(engine: Engine, prompts: Sequence[list[int]], effort: Effort) -> None:
    if not prompts:
        raise ConfigError("a proof needs prompts; give at least one.")
    longest = max(len(prompt) for prompt in prompts)
    if longest + effort.output_tokens > engine.max_context:
        raise ConfigError(
            f"the longest prompt has {longest} tokens and outputs {effort.output_tokens}; "
            f"the context is {engine.max_context}. Shorten the prompts or the outputs."
        )


def _finite(value: Any) -> Any:
    """A value for JSON, with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _finite(own) for name, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
