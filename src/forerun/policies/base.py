"""What most policies have in common: they need to know nothing of an engine and remember nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from forerun.contracts import CausalLM, Drafter
from forerun.core import Draft, Plan, Request, RoundTimes, Verdict
from forerun.options import NoOptions

USUAL_LENGTH = 4
"""Tokens that are drafted a round where nobody says and nothing is measured."""


class BasePolicy(ABC):
    """A policy is its `plan`. It implements `forerun.contracts.Policy` but for that."""

    name: str
    options: type[Any] = NoOptions

    @abstractmethod
    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """One plan a request for the coming round."""

    def attach(self, target: CausalLM, drafter: Drafter, rows: int) -> None:
        """It plans the same for all models."""

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
    ) -> None:
        """Nothing to learn."""

    def release(self, request: Request) -> None:
        """Nothing to forget."""

    def report(self) -> dict[str, Any] | None:
        """Nothing decided."""
        return None

    def in_words(self) -> str | None:
        """Nothing decided."""
        return None
