"""Replay of recorded outputs: the rounds that a length would run, and their costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.bench.tune.records import RecordedOutput
from forerun.costs.rounds import RoundCosts, Seconds


@dataclass
class Replayed:
    """The result of a replay.

    Args:
        prompts: seconds of the prompts.
        seconds: seconds of rounds by stage.
        rounds: number of target forwards.
        parts: number of rounds of each request, added up.
        tokens, drafted, accepted: numbers of tokens.
    """

    prompts: float = 0.0
    seconds: Seconds = field(default_factory=lambda: Seconds(0.0, 0.0, 0.0, 0.0))
    rounds: int = 0
    parts: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def total(self) -> float:
        """Seconds of all rounds, prompts included."""
        return self.prompts + float(self.seconds.total)

    def __iadd__(self, other: Replayed) -> Replayed:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def replay(outputs: Sequence[RecordedOutput], costs: RoundCosts, num_tokens: int) -> Replayed:
    """Decode outputs of a candidate side by side, each round with a draft of the same length.

    Args:
        outputs: one a request.
        costs: costs of the candidate's rounds.
        num_tokens: length of the drafts; 0 decodes plainly.
    """
    positions = [0] * len(outputs)
    started: set[int] = set()
    result = Replayed(sum(costs.prompt(len(output.prompt_ids)) for output in outputs))
    while running := [i for i, output in enumerate(outputs) if positions[i] < len(output)]:
        contexts, nodes, drafts, first = [], [], [], 0.0
        for index in running:
            output, at = outputs[index], positions[index]
            context = len(output.prompt_ids) + at
            drafted = output.drafted(at, num_tokens)
            contexts.append(context)
            nodes.append(0 if drafted is None else output.verified(at, drafted))
            if drafted is not None:
                drafts.append(nodes[-1])
                first += costs.first_draft * context * (index not in started)
                started.add(index)
            emitted = output.advance(at, drafted or 0)
            positions[index] += emitted
            result.tokens += emitted
            result.drafted += drafted or 0
            result.accepted += min(drafted or 0, output.accepted[at])
        result.rounds += 1
        result.parts += len(running)
        result.seconds += _round_seconds(costs, contexts, nodes, drafts, first)
    return result


def _round_seconds(
    costs: RoundCosts,
    contexts: Sequence[int],
    nodes: Sequence[int],
    drafts: Sequence[int],
    first: float,
) -> Seconds:
    """Seconds of a round by stage.

    Args:
        contexts, nodes: context and verified nodes of each request.
        drafts: nodes of those that draft.
        first: seconds of first drafts.
    """
    count = len(contexts)
    context = sum(contexts) / count
    rest = costs.verifying(sum(nodes) / count, count, context)
    draft = costs.drafting(sum(drafts) / len(drafts), len(drafts), context) if drafts else 0.0
    return Seconds(first + draft, rest.target, rest.verify, rest.host)


def plain_seconds(outputs: Sequence[RecordedOutput], costs: RoundCosts) -> float:
    """Seconds of plain decoding of outputs side by side, prompts included."""
    prompts = [len(output.prompt_ids) for output in outputs]
    seconds = sum(costs.plain_prompt(prompt) for prompt in prompts)
    for position in range(max(map(len, outputs))):
        running = [p for p, output in zip(prompts, outputs, strict=True) if position < len(output)]
        context = sum(running) / len(running) + position
        seconds += costs.plain_seconds(len(running), context)
    return seconds
