"""Cascades: several drafters in order; the first that is confident enough proposes, otherwise the last.

The choice follows from the committed tokens alone, before anything is drawn, so the chosen draft is
verified like any other. Drafters that cost nothing and often have no proposal come first (suffixes
of the text itself); a model that always has one comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from pydantic import Field

from forerun.contracts import Cache, Drafter, DrafterSetup
from forerun.core import (
    NO_DRAFT,
    NO_PLAN,
    Draft,
    Drawing,
    Exactness,
    ForwardOutput,
    Plan,
    Request,
    Verdict,
)
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError, UnknownNameError, shown
from forerun.options import Text, options

if TYPE_CHECKING:
    from forerun.randomness import Randomness

# Most tokens along a path.
LONGEST = 64


def parse_member(entry: str) -> tuple[str, int | None]:
    """A method's name, and the most tokens that it may draft along a path, if the entry limits them.

    Args:
        entry: `suffix`, or `draft_model:4`: looked-up tokens cost nothing, a model's do.

    Raises:
        ConfigError: for an invalid length.
        UnknownNameError: for an unknown method.
    """
    from forerun.drafters import DRAFTERS  # Here, because that package imports this file.

    name, colon, length = entry.partition(":")
    known = [other for other in DRAFTERS.names() if other != CascadeDrafter.name]
    if name not in known:
        raise UnknownNameError("method of a cascade", name, known)
    if colon and length not in map(str, range(1, LONGEST + 1)):
        raise ConfigError(f"{shown(entry)} names no length; write draft_model:4, 1 to {LONGEST}.")
    return name, int(length) if colon else None


@options
class CascadeOptions:
    """The methods of a cascade, and the confidence that they need."""

    cascade: tuple[Text, ...] = Field(
        default=("suffix", "draft_model"),
        description="Methods in the order in which they are asked, with the tokens that each may draft.",
    )
    cascade_confidence: float = Field(
        default=0.4,
        ge=0.0,
        le=1.0,
        description="The share of its draft that a method must expect to be accepted.",
    )

    def __post_init__(self) -> None:
        _check_members([name for name, _ in self.entries])

    @property
    def entries(self) -> list[tuple[str, int | None]]:
        """The methods with the most tokens that they may draft along a path; None for any number."""
        return [parse_member(entry) for entry in self.cascade]


def _check_members(names: Sequence[str]) -> None:
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(
            f"a cascade of {', '.join(names) or 'nothing'} has nothing to choose from; "
            "name two methods or more, each once."
        )


class CascadeDrafter(BaseDrafter):
    """Asks its members in turn how confident they are.

    A member that runs layers of the target itself drafts for all requests of a round or for none:
    if it is chosen for some, the requests for which it is not chosen decode plainly.

    Args:
        members: the drafters in the order in which they are asked; the last one is not asked.
        confidence: share of its draft that a member must expect to be accepted.
        lengths: most tokens that each may draft along a path; None is as many as are planned.

    Raises:
        ConfigError: for fewer than two members, or a member that occurs twice.
    """

    name = "cascade"
    takes_trees = True
    options = CascadeOptions

    def __init__(
        self,
        members: Sequence[Drafter],
        confidence: float = CascadeOptions.cascade_confidence,
        lengths: Sequence[int | None] | None = None,
    ) -> None:
        _check_members([member.name for member in members])
        if sum(member.shared_layers > 0 for member in members) > 1:
            raise ConfigError(
                "a cascade takes one member that runs layers of the target; name one."
            )
        self.members, self.least = tuple(members), confidence
        self.lengths = tuple(lengths or [None] * len(members))
        shared = sum(member.shared_layers for member in members)
        if any(n < shared for member in members for n in member.hidden_layers):
            raise ConfigError(
                "a cascade takes no head that reads layers which another member runs by itself; name "
                "one of the two."
            )
        if any(member.exactness is Exactness.APPROXIMATE for member in members):
            self.exactness = Exactness.APPROXIMATE
        self.drawings = members[0].drawings.union(*(member.drawings for member in members))
        self.draws_trees = any(member.draws_trees for member in members)
        self.reads_predictions = any(member.reads_predictions for member in members)
        self.hidden_layers = tuple(sorted({n for member in members for n in member.hidden_layers}))
        self.shared_layers = sum(member.shared_layers for member in members)
        self.vocab_size = next((m.vocab_size for m in members if m.vocab_size is not None), None)
        self.rows = min((m.rows for m in members if m.rows is not None), default=None)

    @classmethod
    def member_methods(cls, options: CascadeOptions) -> tuple[str, ...]:
        return tuple(name for name, _ in options.entries)

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        from forerun.drafters import DRAFTERS

        own = setup.read(CascadeOptions)
        members = [DRAFTERS.find(name).build(setup) for name, _ in own.entries]
        return cls(members, own.cascade_confidence, [length for _, length in own.entries])

    def attach(self, cache: Cache) -> None:
        for member in self.members:
            member.attach(cache)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        choices = [
            self._choice(request, plan) if plan.num_tokens else None
            for request, plan in zip(requests, plans, strict=True)
        ]
        drafts = [NO_DRAFT] * len(requests)
        # A member that runs layers of the target comes first: it drafts for all requests or for none.
        for number in sorted(
            range(len(self.members)), key=lambda n: not self.members[n].shared_layers
        ):
            member = self.members[number]
            indices = [index for index, choice in enumerate(choices) if choice == number]
            if not indices:
                continue
            fitted = {index: self._fitted(plans[index], number) for index in indices}
            if member.shared_layers:
                own = [fitted.get(index, NO_PLAN) for index in range(len(requests))]
                return member.propose(requests, own, randomness)
            made = member.propose(
                [requests[index] for index in indices], list(fitted.values()), randomness
            )
            for index, draft in zip(indices, made, strict=True):
                drafts[index] = draft
        return drafts

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        for member in self.members:
            member.observe(requests, drafts, verdicts, output)

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        for member in self.members:
            if member.hidden_layers:
                member.observe_prefill(request, start, output)

    def pending(self, request: Request) -> int:
        return max(member.pending(request) for member in self.members)

    def confidence(self, request: Request) -> float:
        return max(member.confidence(request) for member in self.members)

    def clear_row(self, row: int) -> None:
        for member in self.members:
            member.clear_row(row)

    def release(self, request: Request) -> None:
        for member in self.members:
            member.release(request)

    def _choice(self, request: Request, plan: Plan) -> int:
        if plan.member is not None:
            return plan.member
        for number, member in enumerate(self.members[:-1]):
            if member.confidence(request) >= self.least:
                return number
        return len(self.members) - 1

    def _fitted(self, plan: Plan, number: int) -> Plan:
        """The plan in a form that a member can follow."""
        member, length = self.members[number], self.lengths[number]
        if not member.takes_trees:
            plan = replace(plan, tree=None, num_nodes=None)
        if plan.drawing not in member.drawings:
            # Drafts that are not sampled need no fixed shape.
            num_nodes = plan.num_nodes if plan.tree is None else len(plan.tree)
            plan = Plan(plan.num_tokens, Drawing.GREEDY, num_nodes=num_nodes)
        return plan if length is None else plan.cut(length)
