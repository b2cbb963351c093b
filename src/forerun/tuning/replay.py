"""Recorded outputs, decoded again by any policy: which rounds it would run, and what they would cost.

Where all candidates were recorded on the same text (greedy requests, requests with a seed), a policy may
change between them from round to round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forerun.costs.rounds import RoundCosts, Seconds
from forerun.errors import ConfigError
from forerun.tuning.records import Output

Recorded = Mapping[str, Output]
"""One output by candidate."""


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
    tokens: _Tokens

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.position

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output so far."""
        return self.tokens.first(self.context)


@dataclass(frozen=True)
class _Tokens:
    """A text that is shown as far as it has come."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def first(self, count: int) -> list[int]:
        return [*self.prompt, *self.output[: count - len(self.prompt)]]


@dataclass(frozen=True)
class Choice:
    """What to draft for a request; no candidate is a plain round."""

    candidate: str | None
    num_tokens: int


PLAIN = Choice(None, 0)


@dataclass(frozen=True)
class Offer:
    """A draft before it is verified: its tokens, and the largest probability in the row of each; none
    where it is a point mass."""

    view: View
    choice: Choice
    drafted: int
    token_probs: tuple[float, ...]


@dataclass(frozen=True)
class Outcome:
    """A round of a request.

    Args:
        offer: what was drafted.
        nodes: tokens verified beside the newest one.
        verified: of them along the longest path.
        accepted, emitted: tokens.
    """

    offer: Offer
    nodes: int
    verified: int
    accepted: int
    emitted: int


class ReplayPolicy(ABC):
    """Chooses from the past alone."""

    name: str

    @abstractmethod
    def choose(self, views: Sequence[View]) -> Sequence[Choice]:
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

    def choose(self, views: Sequence[View]) -> list[Choice]:
        choice = Choice(self.candidate, self.num_tokens) if self.num_tokens else PLAIN
        return [choice] * len(views)


@dataclass
class Replayed:
    """The outcome of a replay.

    Args:
        seconds: of all rounds, prompts included.
        prefill_seconds, draft_seconds, target_seconds, verify_seconds, host_seconds: of them, by stage.
        rounds: target forwards.
        tokens: emitted.
        drafted, accepted: tokens.
        choices: rounds of a request by candidate and length.
    """

    seconds: float = 0.0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0
    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    choices: dict[Choice, int] = field(default_factory=dict)

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.rounds

    @property
    def round_seconds(self) -> float:
        """Without prompts."""
        return self.seconds - self.prefill_seconds

    def __iadd__(self, other: Replayed) -> Replayed:
        for name in vars(other):
            if name != "choices":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for choice, count in other.choices.items():
            self.choices[choice] = self.choices.get(choice, 0) + count
        return self


@dataclass
class _Row:
    """A request on its way."""

    number: int
    recorded: Recorded
    position: int = 0
    started: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        any_output = next(iter(self.recorded.values()))
        self.output = any_output
        self.tokens = _Tokens(any_output.prompt_ids, any_output.token_ids)

    @property
    def ended(self) -> bool:
        return self.position >= len(self.output)

    def view(self) -> View:
        output, at = self.output, self.position
        confidences = {name: one.confidences[at] for name, one in self.recorded.items()}
        room = output.max_tokens - at
        return View(self.number, len(output.prompt_ids), at, room, confidences, self.tokens)

    def offer(self, view: View, choice: Choice) -> Offer:
        if choice.candidate is None or choice.num_tokens < 1 or view.room < 2:
            return Offer(view, PLAIN, 0, ())
        recorded = self.recorded[choice.candidate]
        # Every round emits one token beyond the draft.
        drafted = min(choice.num_tokens, recorded.depths[self.position], view.room - 1)
        probs = recorded.token_probs[self.position] if recorded.token_probs else ()
        return Offer(view, choice, drafted, probs[:drafted])

    def verify(self, offer: Offer, kept: int) -> Outcome:
        name, at = offer.choice.candidate, self.position
        if name is None:
            outcome = Outcome(offer, 0, 0, 0, 1)
        else:
            recorded = self.recorded[name]
            verified = min(kept, offer.drafted)
            emitted = recorded.advance(at, verified)
            accepted = min(verified, recorded.accepted[at])
            # A tree is verified whole.
            is_tree = recorded.nodes[at] != recorded.depths[at]
            nodes = recorded.nodes[at] if is_tree and verified == recorded.depths[at] else verified
            outcome = Outcome(offer, nodes, verified, accepted, emitted)
        self.position += outcome.emitted
        return outcome


def replay(
    batch: Sequence[Recorded], costs: Mapping[str, RoundCosts], policy: ReplayPolicy
) -> Replayed:
    """Decode some recorded outputs side by side.

    Args:
        batch: one entry a request.
        costs: by candidate, all on one scale; see `RoundCosts.scaled`.
        policy: what chooses.

    Raises:
        ConfigError: for a request whose candidates were recorded on different texts.
    """
    rows = [_Row(number, recorded) for number, recorded in enumerate(batch)]
    for row in rows:
        check_same_text(row.recorded)
    result = Replayed()
    # A policy without a drafter of its own pays what its engine does: that of the first candidate.
    usual = next(iter(costs))
    prefill = sum(costs[usual].prompt(len(row.output.prompt_ids)) for row in rows)
    result.seconds = result.prefill_seconds = prefill
    while running := [row for row in rows if not row.ended]:
        views = [row.view() for row in running]
        choices = policy.choose(views)
        offers = list(map(_Row.offer, running, views, choices))
        kept = policy.keep(offers)
        outcomes = list(map(_Row.verify, running, offers, kept))
        seconds = _seconds(running, outcomes, costs, usual)
        _count(result, outcomes, seconds)
        policy.observe(outcomes, seconds)
        for row, view in zip(running, views, strict=True):
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


def _seconds(
    rows: Sequence[_Row],
    outcomes: Sequence[Outcome],
    costs: Mapping[str, RoundCosts],
    usual: str,
) -> Seconds:
    """What a round costs."""
    count = len(outcomes)
    context = sum(one.offer.view.context for one in outcomes) / count
    nodes = sum(one.nodes for one in outcomes) / count
    groups: dict[str, list[int]] = {}
    draft = 0.0
    for row, one in zip(rows, outcomes, strict=True):
        name = one.offer.choice.candidate
        if name is None:
            continue
        drafted = one.nodes if one.nodes > one.verified else one.offer.drafted
        groups.setdefault(name, []).append(drafted)
        if name not in row.started:
            row.started.add(name)
            draft += costs[name].first_draft * one.offer.view.context
    for name, drafts in groups.items():
        draft += costs[name].drafting(sum(drafts) / len(drafts), len(drafts), context)
    most = max(groups, key=lambda name: len(groups[name]), default=usual)
    rest = costs[most].verifying(nodes, count, context)
    return Seconds(draft, rest.target, rest.verify, rest.host)


def _count(result: Replayed, outcomes: Sequence[Outcome], seconds: Seconds) -> None:
    result.seconds += seconds.total
    result.draft_seconds += seconds.draft
    result.target_seconds += seconds.target
    result.verify_seconds += seconds.verify
    result.host_seconds += seconds.host
    result.rounds += 1
    for one in outcomes:
        result.tokens += one.emitted
        result.drafted += one.verified
        result.accepted += one.accepted
        choice = one.offer.choice
        result.choices[choice] = result.choices.get(choice, 0) + 1


def plain_seconds(batch: Sequence[Recorded], costs: RoundCosts) -> float:
    """What plain decoding of the same outputs side by side takes, prompts included."""
    outputs = [next(iter(recorded.values())) for recorded in batch]
    prompts = [len(output.prompt_ids) for output in outputs]
    seconds = prompt_seconds(batch, costs)
    for position in range(max(map(len, outputs))):
        running = [p for p, output in zip(prompts, outputs, strict=True) if position < len(output)]
        context = sum(running) / len(running) + position
        seconds += costs.plain.seconds(1, len(running), context)
    return seconds


def prompt_seconds(batch: Sequence[Recorded], costs: RoundCosts) -> float:
    """What plain decoding takes for the prompts alone."""
    outputs = [next(iter(recorded.values())) for recorded in batch]
    return sum(costs.plain_prompt(len(output.prompt_ids)) for output in outputs)
