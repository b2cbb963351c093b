"""Replay of recorded outputs: the rounds that a length would run, and their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forerun.bench.tune.records import RecordedOutput
from forerun.costs.rounds import RoundCosts, Seconds

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
        for one in verified:
            self.tokens += one.emitted
            self.drafted += one.verified
            self.accepted += one.accepted
            self.choices[one.choice] = self.choices.get(one.choice, 0) + 1


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
        if choice.candidate is None or choice.num_tokens < 1 or self.room < 2:
            return PLAIN, 0
        depth = self.recorded[choice.candidate].depths[self.position]
        # Every round emits one token beyond the draft.
        return choice, min(choice.num_tokens, depth, self.room - 1)

    def verify(self, choice: DraftChoice, drafted: int, kept: int) -> Verified:
        """Verify `kept` of the drafted tokens and go on behind what is emitted."""
        at, context = self.position, self.context
        if choice.candidate is None:
            self.position += 1
            return Verified(choice, context, 0, 0, 0, 0, 1)
        recorded = self.recorded[choice.candidate]
        verified = min(kept, drafted)
        # A tree is verified whole.
        is_tree = recorded.nodes[at] != recorded.depths[at]
        nodes = recorded.nodes[at] if is_tree and verified == recorded.depths[at] else verified
        emitted = recorded.advance(at, verified)
        self.position += emitted
        accepted = min(verified, recorded.accepted[at])
        return Verified(choice, context, drafted, nodes, verified, accepted, emitted)


def replay(
    batch: Sequence[Recorded], costs: RoundCosts, candidate: str, num_tokens: int
) -> Replayed:
    """Decode recorded outputs side by side, each round with a draft of the same length.

    Args:
        batch: one entry a request.
        costs: costs of the candidate's rounds.
        candidate: the drafter.
        num_tokens: its length; 0 decodes plainly.
    """
    rows = list(map(ReplayedRequest, batch))
    prompts = sum(costs.prompt(len(row.output.prompt_ids)) for row in rows)
    result = Replayed(seconds=prompts, prefill_seconds=prompts)
    choice = DraftChoice(candidate, num_tokens) if num_tokens else PLAIN
    while running := [row for row in rows if not row.ended]:
        drafts = [row.draft(choice) for row in running]
        verified = [
            row.verify(*draft, kept=draft[1]) for row, draft in zip(running, drafts, strict=True)
        ]
        seconds = round_seconds(running, verified, {candidate: costs}, candidate)
        result.count(verified, seconds)
    return result


def round_seconds(
    rows: Sequence[ReplayedRequest],
    verified: Sequence[Verified],
    costs: Mapping[str, RoundCosts],
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
    context = sum(one.context for one in verified) / count
    nodes = sum(one.nodes for one in verified) / count
    groups: dict[str, list[int]] = {}
    draft = 0.0
    for row, one in zip(rows, verified, strict=True):
        name = one.choice.candidate
        if name is None:
            continue
        drafted = one.nodes if one.nodes > one.verified else one.drafted
        groups.setdefault(name, []).append(drafted)
        if name not in row.started:
            row.started.add(name)
            draft += costs[name].first_draft * one.context
    for name, drafts in groups.items():
        draft += costs[name].drafting(sum(drafts) / len(drafts), len(drafts), context)
    most = max(groups, key=lambda name: len(groups[name]), default=usual)
    rest = costs[most].verifying(nodes, count, context)
    return Seconds(draft, rest.target, rest.verify, rest.host)


def plain_seconds(batch: Sequence[Recorded], costs: RoundCosts) -> float:
    """Seconds of plain decoding of the same outputs side by side, prompts included."""
    outputs = [next(iter(recorded.values())) for recorded in batch]
    prompts = [len(output.prompt_ids) for output in outputs]
    seconds = prompt_seconds(batch, costs)
    for position in range(max(map(len, outputs))):
        running = [p for p, output in zip(prompts, outputs, strict=True) if position < len(output)]
        context = sum(running) / len(running) + position
        seconds += costs.plain_seconds(len(running), context)
    return seconds


def prompt_seconds(batch: Sequence[Recorded], costs: RoundCosts) -> float:
    """Seconds that plain decoding takes for the prompts alone."""
    outputs = [next(iter(recorded.values())) for recorded in batch]
    return sum(costs.plain_prompt(len(output.prompt_ids)) for output in outputs)
