"""How to speculate: one flat dataclass, with the field's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forerun.checks import Check, normalize, one_of, optional, refuse_unknown, switch, text, whole
from forerun.errors import ConfigError
from forerun.theory.adaptive import AdaptiveLength

DRAFT_SAMPLE_METHODS = ("auto", "greedy", "probabilistic")


@dataclass(frozen=True)
class SpeculativeConfig:
    """How to speculate.

    Args:
        method: the drafter. None lets `forerun.load` pick one; an `Engine` without a drafter
            decodes plainly.
        model: the draft model, a directory or a hub id, for methods that need one.
        revision: its revision on the hub.
        num_speculative_tokens: tokens to draft a round, 1 to 64; under the adaptive policy those
            of the first rounds, 2 to 10.
        prompt_lookup_min, prompt_lookup_max: n-gram sizes of the `ngram` method.
        rejection_sample_method: the verification rule; `auto` takes coupled for requests with a
            seed, token for point masses, block for drawn chains.
        draft_sample_method: how a draft model picks tokens: `probabilistic` draws as the request
            would, `greedy` takes its most likely token, `auto` leaves it to the rule.
        policy: how the length changes from round to round.
        monitor: stop speculating where it does not pay, and probe again later.
        draft_dtype: precision of the draft model; `auto` is as stored, on the CPU kernels int8 or int4.

    Raises:
        ConfigError: for a value of a wrong type or out of range, or a combination that cannot be exact.
    """

    method: str | None = None
    model: str | None = None
    revision: str | None = None
    num_speculative_tokens: int = 4
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    rejection_sample_method: str = "auto"
    draft_sample_method: str = "auto"
    policy: str = "fixed"
    monitor: bool = True
    draft_dtype: str = "auto"

    def __post_init__(self) -> None:
        normalize(self, _checks())
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max "
                f"{self.prompt_lookup_max}; give 1 <= min <= max."
            )
        shortest, longest = AdaptiveLength.shortest, AdaptiveLength.longest
        adaptive = self.policy == "adaptive"
        if adaptive and not shortest <= self.num_speculative_tokens <= longest:
            raise ConfigError(
                f"num_speculative_tokens is {self.num_speculative_tokens}; under policy 'adaptive' "
                f"it must lie in [{shortest}, {longest}], or use policy 'fixed'."
            )
        if self.draft_sample_method == "greedy" and self.rejection_sample_method == "block":
            raise ConfigError(
                "block verification needs drawn drafts, greedy drafts are point masses; "
                "use rejection_sample_method 'token' or draft_sample_method 'auto'."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Make one from a mapping; an unknown key is an error that lists the known ones."""
        refuse_unknown("speculative option", values, cls)
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _checks() -> dict[str, Check]:
    # Imported here because they import torch, and the options alone should be quick to have.
    from forerun.drafters import drafter_names
    from forerun.models.placement import PRECISIONS
    from forerun.policies import policy_names
    from forerun.verification import rule_names

    return {
        "method": optional(one_of(drafter_names())),
        "model": optional(text),
        "revision": optional(text),
        "num_speculative_tokens": whole(1, 64),
        "prompt_lookup_min": whole(1, 2**31),
        "prompt_lookup_max": whole(1, 2**31),
        "rejection_sample_method": one_of(rule_names()),
        "draft_sample_method": one_of(DRAFT_SAMPLE_METHODS),
        "policy": one_of(policy_names()),
        "monitor": switch,
        "draft_dtype": one_of(("auto", *PRECISIONS)),
    }
