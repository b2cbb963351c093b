"""Recorded outputs: at every position what a drafter proposed and how much of it would be accepted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from forerun.errors import ConfigError
from forerun.measure.ledger import Format, Ledger


@dataclass(frozen=True)
class RecordedOutput:
    """One output under one candidate. Position i is the round that would begin after i output tokens.

    Args:
        candidate: name of the drafter.
        prompt_id, category: id and category of the prompt.
        prompt_ids, token_ids: tokens of prompt and output.
        max_tokens: limit of the output.
        nodes: number of drafted tokens at each position.
        depths: drafted tokens along the longest path.
        accepted: drafted tokens that the rule accepts.
        confidences: confidence of the drafter before it drafted; see `Drafter.confidence`.
        token_probs: the largest probability in the row of each drafted token; empty where drafts are
            point masses.
        prefill_seconds: time of the prompt's prefill.
    """

    candidate: str
    prompt_id: str
    category: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    max_tokens: int
    nodes: tuple[int, ...]
    depths: tuple[int, ...]
    accepted: tuple[int, ...]
    confidences: tuple[float, ...]
    token_probs: tuple[tuple[float, ...], ...] = ()
    prefill_seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def key(self) -> tuple[str, str]:
        return self.candidate, self.prompt_id

    def drafted(self, position: int, num_tokens: int) -> int | None:
        """Tokens that a round at a position drafts at most; None where it decodes plainly.

        Every round emits one token beyond the draft.
        """
        room = self.max_tokens - position
        if num_tokens < 1 or room < 2:
            return None
        return min(num_tokens, self.depths[position], room - 1)

    def verified(self, position: int, drafted: int) -> int:
        """Tokens that are verified beside the newest one: a tree is verified whole."""
        is_tree = self.nodes[position] != self.depths[position]
        whole = is_tree and drafted == self.depths[position]
        return self.nodes[position] if whole else drafted

    def advance(self, position: int, num_tokens: int) -> int:
        """Tokens that a round at a position emits, if it verifies so many drafted ones."""
        reached = min(num_tokens, self.accepted[position]) + 1
        return min(reached, len(self) - position)


@dataclass(frozen=True)
class RoundTiming:
    """A round as it was timed.

    Args:
        batch_size: number of requests.
        nodes: drafted tokens, the mean over the requests.
        drafted: drafting was asked for.
        first: its requests draft for the first time: their prompts go through the drafter.
        context: tokens in the cache, the mean over the requests.
        draft, target, verify: seconds by stage.
        host: seconds of the rest.
        beside: seconds of plain rounds at that time; 0 without any.
    """

    batch_size: int
    nodes: float
    drafted: bool
    first: bool
    context: float
    draft: float
    target: float
    verify: float
    host: float
    beside: float = 0.0


@dataclass(frozen=True)
class PromptTiming:
    """Timed rounds of a candidate on one prompt, beside plain decoding.

    Args:
        candidate, prompt_id: drafter and prompt.
        batch_size: requests of the same prompt side by side.
        turn: number of earlier timings.
        prompt_tokens: tokens of the prompt whose prefill was timed.
        rounds: rounds with lengths in turns.
        plain: context and seconds of each plain token or, of a batch, round.
        prefill, plain_prefill: seconds for one request.
    """

    candidate: str
    prompt_id: str
    batch_size: int
    prompt_tokens: int
    rounds: tuple[RoundTiming, ...]
    plain: tuple[tuple[float, float], ...]
    prefill: float
    plain_prefill: float
    turn: int = 0

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.candidate, self.prompt_id, self.batch_size, self.turn


Record = RecordedOutput | PromptTiming
"""One line of a file of records."""


@dataclass
class Records:
    """Records of a run, in memory and in a file if there is one.

    Args:
        made_with: settings that the records depend on: model, sampler, versions, machine.
        file: file that records are appended to.
    """

    made_with: Mapping[str, Any] = field(default_factory=dict)
    file: Ledger[Record] | None = None
    outputs: dict[tuple[str, str], RecordedOutput] = field(default_factory=dict)
    timings: dict[tuple[str, str, int, int], PromptTiming] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str | os.PathLike[str], made_with: Mapping[str, Any]) -> Records:
        """Go on with a file, or begin one.

        Raises:
            ConfigError: for a file of other settings, or that is damaged.
        """
        records = cls(dict(made_with))
        records.file = Ledger(path, ROUNDS, made_with, records._keep)
        return records

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Records:
        """Read the records of a file.

        Raises:
            ConfigError: for a file that cannot be read or does not hold records, naming the line.
        """
        records = cls(ROUNDS.read_header(path))
        for record in ROUNDS.read(path):
            records._keep(record)
        return records

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def add(self, *records: Record) -> None:
        """Keep records, in the file too.

        Raises:
            ConfigError: if the disk is full.
        """
        for record in records:
            self._keep(record)
        if self.file is not None:
            self.file.append(records)

    def of(self, candidate: str) -> list[RecordedOutput]:
        """The outputs of a candidate, in the order of their recording."""
        return [output for output in self.outputs.values() if output.candidate == candidate]

    def _keep(self, record: Record) -> None:
        if isinstance(record, RecordedOutput):
            self.outputs[record.key] = record
        else:
            self.timings[record.key] = record


def _parse(content: Mapping[str, Any]) -> Record:
    """Record of the kind that has the content's keys."""
    if "token_ids" not in content:
        rounds = [RoundTiming(*values) for values in content["rounds"]]
        timing: PromptTiming = _made(PromptTiming, {**content, "rounds": rounds})
        return timing
    output: RecordedOutput = _made(RecordedOutput, content)
    _check(output)
    return output


def _content(record: Record) -> dict[str, Any]:
    """Fields of a record, each round of a timing as a list."""
    content = asdict(record)
    if isinstance(record, PromptTiming):
        content["rounds"] = [list(own.values()) for own in content["rounds"]]
    return content


def _made(kind: type[Any], content: Mapping[str, Any]) -> Any:
    """A record of its fields, lists as tuples."""
    known = {field.name for field in fields(kind)}
    if content.keys() - known:
        raise ValueError(f"unknown {sorted(content.keys() - known)}")
    return kind(**{name: _tuples(value) for name, value in content.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check(output: RecordedOutput) -> None:
    count = len(output.token_ids)
    for name in ("nodes", "depths", "accepted", "confidences"):
        if len(getattr(output, name)) != count:
            raise ValueError(f"{name} has not one entry for each of {count} tokens")
    if any(a > d for a, d in zip(output.accepted, output.depths, strict=True)):
        raise ValueError("more tokens are accepted than drafted")


ROUNDS = Format(
    mark="forerun_rounds",
    version=3,
    command="python -m benchmarks.rivals.record",
    error=ConfigError,
    content=_content,
    parse=_parse,
)
"""Format of a file of records; of two records with the same key the later one counts."""
