"""What most drafters have in common: a method is its `propose`, and what it does otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from forerun.contracts import Cache, DrafterSetup
from forerun.core import NO_DRAFT, Draft, Drawing, Exactness, ForwardOutput, Plan, Request, Verdict
from forerun.options import NoOptions

if TYPE_CHECKING:
    from forerun.randomness import Randomness


class BaseDrafter(ABC):
    """A drafter of point masses, from any vocabulary, for any number of requests, that keeps
    nothing. It implements `forerun.contracts.Drafter` but for the proposals."""

    name: str
    exactness = Exactness.DISTRIBUTIONAL
    drawings: frozenset[Drawing] = frozenset({Drawing.GREEDY})
    draws_trees = False
    takes_trees = False
    needs_draft_model = False
    head: str | None = None
    reads_predictions = False
    acceptance: tuple[tuple[float, ...], ...] | None = None
    shared_layers: int = 0
    hidden_layers: tuple[int, ...] = ()
    vocab_size: int | None = None
    rows: int | None = None
    options: type[Any] = NoOptions

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @classmethod
    def member_methods(cls, options: Any) -> tuple[str, ...]:  # noqa: ARG003
        """It drafts alone."""
        return ()

    @classmethod
    @abstractmethod
    def build(cls, setup: DrafterSetup) -> Self:
        """Make one for an engine."""

    @abstractmethod
    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One draft a request."""

    def attach(self, cache: Cache) -> None:
        """The target's cache is of no use to it."""

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Nothing to learn."""

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        """Nothing to learn."""

    def confidence(self, request: Request) -> float:
        """It always has something to propose."""
        return 1.0

    def clear_row(self, row: int) -> None:
        """Nothing is kept by row."""

    def release(self, request: Request) -> None:
        """Nothing to forget."""


class LookupDrafter(BaseDrafter):
    """Looks its tokens up, for each request by itself, as chains and as trees."""

    takes_trees = True

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        return [
            self.draft(request, plan) if plan.num_tokens else NO_DRAFT
            for request, plan in zip(requests, plans, strict=True)
        ]

    @abstractmethod
    def draft(self, request: Request, plan: Plan) -> Draft:
        """The draft of a request that at least one token is planned for."""
