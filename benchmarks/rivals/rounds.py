"""Rounds of recorded outputs under any choice of candidate and length, and their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.rivals.costs import Seconds, StageCosts
from benchmarks.rivals.records import RecordedOutput

Recorded = Mapping[str, RecordedOutput]
"""One output by candidate."""


@dataclass(frozen=True)
class DraftChoice:
    """A draft for a request: its candidate and length; without a candidate the round is plain."""

    candidate: str | None
    num_tokens: int


PLAIN = DraftChoice(None, 0)


@dataclass(frozen=True)
class Verified:
    """A request's part of a round.

    Args:
        choice: candidate and length.
        context: tokens of the request before it.
        drafted: tokens drafted along the longest path.
        nodes: tokens verified beside the newest one.
        verified: those of them along the longest path.
        accepted, emitted: numbers of tokens.
    """

    choice: DraftChoice
    context: int
    drafted: int
    nodes: int
    verified: int
    accepted: int
    emitted: int


@dataclass
class Replayed:
    """The result of a replay.

    Args:
        seconds: time of all rounds, prompts included.
        prefill_seconds, draft_seconds, target_seconds, verify_seconds, host_seconds: parts of it.
        rounds: number of target forwards.
        tokens, drafted, accepted: numbers of tokens.
        choices: number of rounds of a request by candidate and length.
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
    choices: dict[DraftChoice, int] = field(default_factory=dict)

    @property
    def round_seconds(self) -> float:
        """Seconds without prompts."""
        return self.seconds - self.prefill_seconds

    def __iadd__(self, other: Replayed) -> Replayed:
        for name in vars(other):
            if name != "choices":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for choice, count in other.choices.items():
            self.choices[choice] = self.choices.get(choice, 0) + count
        return self

    def count(self, verified: Sequence[Verified], seconds: Seconds) -> None:
        """Add a round."""
        self.seconds += seconds.total
        self.draft_seconds += seconds.draft
        self.target_seconds += seconds.target
        self.verify_seconds += seconds.verify
        self.host_seconds += seconds.host
        self.rounds += 1
        for request in verified:
            self.tokens += request.emitted
            self.drafted += request.verified
            self.accepted += request.accepted
            self.choices[request.choice] = self.choices.get(request.choice, 0) + 1


@dataclass
class ReplayedRequest:
    """A request on its way through its recorded output.

    Args:
        recorded: the output by candidate.
        position: output tokens so far.
        started: candidates that have drafted for it.
    """

    recorded: Recorded
    position: int = 0
    started: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.output = next(iter(self.recorded.values()))

    @property
    def ended(self) -> bool:
        """True if all of the output is there."""
        return self.position >= len(self.output)

    @property
    def context(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.output.prompt_ids) + self.position

    @property
    def room(self) -> int:
        """Tokens that it may still emit."""
        return self.output.max_tokens - self.position

    def draft(self, choice: DraftChoice) -> tuple[DraftChoice, int]:
        """The choice, plain where there is no room for a draft, and the tokens that it drafts."""
        if choice.candidate is None:
            return PLAIN, 0
        drafted = self.recorded[choice.candidate].drafted(self.position, choice.num_tokens)
        return (PLAIN, 0) if drafted is None else (choice, drafted)

    def verify(self, choice: DraftChoice, drafted: int, kept: int) -> Verified:
        """Verify `kept` of the drafted tokens and go on behind what is emitted."""
        at, context = self.position, self.context
        if choice.candidate is None:
            self.position += 1
            return Verified(choice, context, 0, 0, 0, 0, 1)
        recorded = self.recorded[choice.candidate]
        verified = min(kept, drafted)
        nodes = recorded.verified(at, verified)
        emitted = recorded.advance(at, verified)
        self.position += emitted
        accepted = min(verified, recorded.accepted[at])
        return Verified(choice, context, drafted, nodes, verified, accepted, emitted)


def round_seconds(
    rows: Sequence[ReplayedRequest],
    verified: Sequence[Verified],
    costs: Mapping[str, StageCosts],
    usual: str,
) -> Seconds:
    """Seconds of a round by stage.

    Args:
        rows: the requests.
        verified: their parts of the round.
        costs: costs by candidate.
        usual: candidate whose engine runs a round that drafts nothing.
    """
    count = len(verified)
    context = sum(request.context for request in verified) / count
    nodes = sum(request.nodes for request in verified) / count
    groups: dict[str, list[int]] = {}
    draft = 0.0
    for row, request in zip(rows, verified, strict=True):
        name = request.choice.candidate
        if name is None:
            continue
        drafted = request.nodes if request.nodes > request.verified else request.drafted
        groups.setdefault(name, []).append(drafted)
        if name not in row.started:
            row.started.add(name)
            draft += costs[name].first_draft * request.context
    for name, drafts in groups.items():
        draft += costs[name].drafting(sum(drafts) / len(drafts), len(drafts), context)
    most = max(groups, key=lambda name: len(groups[name]), default=usual)
    rest = costs[most].verifying(nodes, count, context)
    return Seconds(draft, rest.target, rest.verify, rest.host)
