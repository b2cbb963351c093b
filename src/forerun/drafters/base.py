"""What most drafters have in common: a method is its `propose`, and what it does otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from forerun.contracts import Cache, Drafter, DrafterSetup
from forerun.core import NO_DRAFT, Draft, Drawing, Exactness, ForwardOutput, Plan, Request, Verdict
from forerun.options import NoOptions, options

# What needs torch is imported where it is used: options and help are read without it.
if TYPE_CHECKING:
    from forerun.heads.features import Features, Missing, Trims
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


# About what a further token costs, in plain rounds, to draft and to check.
LEAST_CONFIDENCE = 0.1


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
    optional_head: str | None = None
    reads_predictions = False
    acceptance: tuple[tuple[float, ...], ...] | None = None
    shared_layers: int = 0
    hidden_layers: tuple[int, ...] = ()
    vocab_size: int | None = None
    rows: int | None = None
    members: tuple[Drafter, ...] = ()
    looks_up = False
    origin = ""
    options: type[Any] = NoOptions
    features: Features | None = None

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
        """What it reads of the target's states; else nothing to learn."""
        if self.features is not None:
            self.features.observe(requests, verdicts, output)

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        """The same of a prompt."""
        if self.features is not None:
            self.features.observe_prefill(request, start, output)

    def pending(self, request: Request) -> int:
        """What its head has not read of a request; else nothing to run."""
        return 0 if self.features is None else self.features.pending(request)

    def cost_share(self, request: Request) -> float | None:
        """Nothing is known before it is measured."""
        return None

    def confidence(self, request: Request) -> float:
        """It always has something to propose."""
        return 1.0

    def clear_row(self, row: int) -> None:
        """What it has read of a row."""
        if self.features is not None:
            self.features.clear(row)

    def release(self, request: Request) -> None:
        """Nothing to forget."""


def fits_one_call(
    requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
) -> bool:
    """Whether a model that drafts chains may draft alone: no trees, penalties, masks or record of keys."""
    return (
        randomness.by_key_alone
        and not any(request.params.adjusts for request in requests)
        and all(plan.is_chain for plan in plans)
    )


class LookupDrafter(BaseDrafter):
    """Looks its tokens up, for each request by itself, as chains and as trees."""

    takes_trees = True
    looks_up = True

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


@options
class HeadOptions:
    """When a chain of a trained head ends early."""

    least_confidence: float = Field(
        default=LEAST_CONFIDENCE,
        ge=0.0,
        le=1.0,
        description="End a chain where the head expects its tokens to be all accepted with less than this "
        "probability; 0 drafts all tokens that are planned.",
    )


class HeadDrafter(BaseDrafter):
    """Drafts chains and trees with a trained head, from the target's hidden states.

    It drafts nothing for a request until it has seen the state of the newest token that the target has
    run. Greedy trees are of the most probable nodes, drawn ones of a fixed shape.

    Args:
        hidden_layers: of the target, that the head reads.
        rows: as many as the target's cache has.
        vocab_size: the target's.
        acceptance: by depth and rank, as it was measured when the head was trained.
        cache: the head's own, if it has one.
    """

    drawings = frozenset(Drawing)
    takes_trees = True
    features: Features

    def __init__(
        self,
        hidden_layers: tuple[int, ...],
        rows: int,
        vocab_size: int,
        acceptance: tuple[tuple[float, ...], ...] | None = None,
        cache: Trims | None = None,
    ) -> None:
        from forerun.heads.features import Features

        self.rows, self.vocab_size = rows, vocab_size
        self.hidden_layers, self.acceptance = hidden_layers, acceptance
        self.features = Features(hidden_layers, rows, cache)

    @abstractmethod
    def longest(self, request: Request) -> int:
        """Tokens of a draft of a request at most."""

    @abstractmethod
    def grow(
        self,
        growths: list[Growth],
        missing: list[Missing],
        num_tokens: int,
        randomness: Randomness,
    ) -> None:
        """Grow trees from the states that the head has not read, `num_tokens` deep at most."""

    def draft(
        self,
        requests: list[Request],
        plans: list[Plan],
        missing: list[Missing],
        randomness: Randomness,
    ) -> list[Draft]:
        """Draft for requests with a plan, from the states that the head has not read."""
        from forerun.trees.growth import start

        growths = [start(*pair) for pair in zip(requests, plans, strict=True)]
        self.grow(growths, missing, max(plan.num_tokens for plan in plans), randomness)
        return [growth.finish() for growth in growths]

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafting: dict[int, Plan] = {}
        missing: list[Missing] = []
        for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
            longest = self.longest(request) if plan.num_tokens else 0
            lacking = self.features.missing(request) if longest > 0 else None
            if lacking is not None:
                drafting[index] = plan.cut(longest)
                missing.append(lacking)
        drafts = [NO_DRAFT] * len(requests)
        if not drafting:
            return drafts
        chosen, fitting = [requests[index] for index in drafting], list(drafting.values())
        proposed = self.draft(chosen, fitting, missing, randomness)
        for index, draft in zip(drafting, proposed, strict=True):
            drafts[index] = draft
        return drafts
