"""A drafter and a policy as another package registers them, by entry points."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field

from forerun.contracts import DrafterSetup
from forerun.core import Draft, Plan, Request
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError
from forerun.options import Text, options
from forerun.policies.fixed import FixedPolicy


@options
class ParrotOptions:
    """What a parrot says."""

    volume: int = Field(default=3, ge=1, le=11, description="How loud.")
    silent_at_night: bool = Field(default=False, description="Whether it sleeps.")
    words: tuple[Text, ...] = Field(default=(), description="What it knows.")
    share: float | None = Field(default=None, ge=0.0, le=1.0, description="How often.")

    def __post_init__(self) -> None:
        if self.silent_at_night and self.volume > 9:
            raise ConfigError(f"volume is {self.volume}; a parrot that is silent has 9 at most.")


class Parrot(BaseDrafter):
    """Repeats the newest token.

    Not much of a drafter.
    """

    name = "parrot"
    options = ParrotOptions

    def __init__(self, own: ParrotOptions) -> None:
        self.own = own

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        return cls(setup.read(ParrotOptions))

    def propose(self, requests: Any, plans: Any, randomness: Any) -> list[Draft]:
        return [self._draft(*pair) for pair in zip(requests, plans, strict=True)]

    @staticmethod
    def _draft(request: Request, plan: Plan) -> Draft:
        return Draft.chain([request.token_ids[-1]] * plan.num_tokens)


class Sleepy(FixedPolicy):
    """A policy without options."""

    name = "sleepy"


class Point:
    """An entry point; what it names is missing if that is None."""

    def __init__(self, name: str, what: Any) -> None:
        self.name, self.value, self._what = name, f"{name}:Class", what

    def load(self) -> Any:
        if self._what is None:
            raise ImportError(f"No module named '{self.name}'")
        return self._what


POINTS = {
    "forerun.drafters": [Point("parrot", Parrot), Point("broken", None)],
    "forerun.policies": [Point("sleepy", Sleepy)],
}


def entry_points_of(group: str) -> list[Point]:
    """As `forerun.registry.entry_points_of` would find them: a package, and a broken one."""
    return POINTS.get(group, [])
