"""Recorded outputs, decoded again by any policy: which rounds it would run, and what they would cost.

Where all candidates were recorded on the same text (greedy requests, requests with a seed), a policy may
change between them from round to round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.rivals.costs import Seconds, StageCosts
from benchmarks.rivals.rounds import (
    PLAIN,
    DraftChoice,
    Recorded,
    Replayed,
    ReplayedRequest,
    Verified,
    round_seconds,
)
from forerun.errors import ConfigError


@dataclass(frozen=True)
class View:
    """What a policy may know of a request before a round: the past.

    Args:
        request: its number.
        prompt_tokens: of its prompt.
        position: output tokens so far.
        room: tokens that it may still emit.
        confidences: of the drafters, by candidate.
        tokens: prompt and output so far.
    """

    request: int
    prompt_tokens: int
    position: int
    room: int
    confidences: Mapping[str, float]
    tokens: Tokens

    @classmethod
    def of(cls, number: int, row: ReplayedRequest) -> View:
        """The view of a request."""
        output, at = row.output, row.position
        confidences = {name: draft.confidences[at] for name, draft in row.recorded.items()}
        tokens = Tokens(output.prompt_ids, output.token_ids)
        return cls(number, len(output.prompt_ids), at, row.room, confidences, tokens)

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.position

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output so far."""
        return self.tokens.first(self.context)


@dataclass(frozen=True)
class Tokens:
    """A text that is shown as far as it has come."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def first(self, count: int) -> list[int]:
        return [*self.prompt, *self.output[: count - len(self.prompt)]]


@dataclass(frozen=True)
class Offer:
    """A draft before it is verified: its tokens, and the largest probability in the row of each; none
    where it is a point mass."""

    view: View
    choice: DraftChoice
    drafted: int
    token_probs: tuple[float, ...]

    @classmethod
    def of(cls, row: ReplayedRequest, view: View, choice: DraftChoice) -> Offer:
        """What is drafted for a request."""
        choice, drafted = row.draft(choice)
        probs: tuple[float, ...] = ()
        if choice.candidate is not None and row.recorded[choice.candidate].token_probs:
            probs = row.recorded[choice.candidate].token_probs[row.position]
        return cls(view, choice, drafted, probs[:drafted])


@dataclass(frozen=True)
class Outcome:
    """A round of a request: what was offered and what was verified of it."""

    offer: Offer
    nodes: int
    verified: int
    accepted: int
    emitted: int

    @classmethod
    def of(cls, offer: Offer, verified: Verified) -> Outcome:
        """The outcome of an offer."""
        return cls(offer, verified.nodes, verified.verified, verified.accepted, verified.emitted)


class ReplayPolicy(ABC):
    """Chooses from the past alone."""

    name: str

    @abstractmethod
    def choose(self, views: Sequence[View]) -> Sequence[DraftChoice]:
        """What to draft for each request."""

    def keep(self, offers: Sequence[Offer]) -> Sequence[int]:
        """How many tokens of each draft to verify: by what is known before they are."""
        return [offer.drafted for offer in offers]

    def observe(self, outcomes: Sequence[Outcome], seconds: Seconds) -> None:
        """Learn from a round."""

    def release(self, view: View) -> None:
        """Forget a request that has ended."""


@dataclass(frozen=True)
class Fixed(ReplayPolicy):
    """The same candidate and length every round; a length of 0 decodes plainly."""

    candidate: str
    num_tokens: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.candidate}, {self.num_tokens}" if self.num_tokens else "plain"

    def choose(self, views: Sequence[View]) -> list[DraftChoice]:
        choice = DraftChoice(self.candidate, self.num_tokens) if self.num_tokens else PLAIN
        return [choice] * len(views)


def replay(
    batch: Sequence[Recorded], costs: Mapping[str, StageCosts], policy: ReplayPolicy
) -> Replayed:
    """Decode some recorded outputs side by side.

    Args:
        batch: one entry a request.
        costs: by candidate, all on one scale; see `regret.scaled`.
        policy: what chooses.

    Raises:
        ConfigError: for a request whose candidates were recorded on different texts.
    """
    rows = list(map(ReplayedRequest, batch))
    for row in rows:
        check_same_text(row.recorded)
    # A policy without a drafter of its own pays what its engine does: that of the first candidate.
    usual = next(iter(costs))
    prefill = sum(costs[usual].prompt(len(row.output.prompt_ids)) for row in rows)
    result = Replayed(seconds=prefill, prefill_seconds=prefill)
    while running := [(number, row) for number, row in enumerate(rows) if not row.ended]:
        views = [View.of(number, row) for number, row in running]
        left = [row for _, row in running]
        offers = list(map(Offer.of, left, views, policy.choose(views)))
        budgets = policy.keep(offers)
        verified = [
            row.verify(offer.choice, offer.drafted, count)
            for row, offer, count in zip(left, offers, budgets, strict=True)
        ]
        seconds = round_seconds(left, verified, costs, usual)
        result.count(verified, seconds)
        policy.observe(list(map(Outcome.of, offers, verified)), seconds)
        for row, view in zip(left, views, strict=True):
            if row.ended:
                policy.release(view)
    return result


def check_same_text(recorded: Recorded) -> None:
    """Refuse candidates that were recorded on different texts.

    Raises:
        ConfigError: naming two of them.
    """
    first, *others = recorded.values()
    for other in others:
        if other.token_ids != first.token_ids:
            raise ConfigError(
                f"{first.candidate} and {other.candidate} were recorded on different outputs of prompt "
                f"{first.prompt_id}; record with temperature 0 or a seed, or replay them apart."
            )
