"""Recorded outputs: at every position what a drafter proposed and how much of it would be accepted.

One JSON line for each output under each candidate, written atomically: what was recorded before an
interruption is there, whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from forerun.errors import ConfigError
from forerun.files import parse_json, printable, read_text, write_text
from forerun.tuning.contexts import Shares

FORMAT = "forerun recorded rounds"
VERSION = 1
MOST_BYTES = 2**30


@dataclass(frozen=True)
class Output:
    """One output under one candidate. Position i is the round that would begin after i output tokens.

    Args:
        candidate: what drafted.
        prompt_id, category: of the prompt.
        prompt_ids, token_ids: of prompt and output.
        max_tokens: the output's limit.
        nodes: tokens of the draft at each position.
        depths: of them along the longest path.
        accepted: of them along the path that the rule accepts.
        confidences: that the drafter had before it drafted; see `Drafter.confidence`.
        token_probs: the largest probability in the row of each drafted token; empty where drafts are
            point masses.
        survival: the probability that at least 1, 2, … tokens are accepted; empty where the rule has no
            such probabilities.
        seconds: of drafting, the target and verification.
        prefill_seconds: of the prompt.
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
    survival: tuple[tuple[float, ...], ...] = ()
    seconds: tuple[tuple[float, float, float], ...] = ()
    prefill_seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def key(self) -> tuple[str, str]:
        return self.candidate, self.prompt_id

    def advance(self, position: int, num_tokens: int) -> int:
        """Tokens that a round at a position emits, if it verifies so many drafted ones."""
        reached = min(num_tokens, self.accepted[position]) + 1
        return min(reached, len(self) - position)


@dataclass(frozen=True)
class Round:
    """A round as it was timed.

    Args:
        batch_size: requests.
        nodes: drafted tokens, the mean over the requests.
        drafted: whether drafting was asked for.
        first: whether it is the first of its requests that drafts: their prompts go through the drafter.
        context: tokens in the cache, the mean over the requests.
        draft, target, verify: seconds by stage.
        host: seconds of the rest.
        beside: seconds of plain rounds at that time; 0 where there were none.
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
class Timing:
    """What was timed of a candidate on one prompt, beside plain decoding.

    Args:
        candidate, prompt_id: whose.
        batch_size: requests of the same prompt side by side.
        turn: how often it was timed before.
        prompt_tokens: of the prompt, as far as its prefill was timed.
        rounds: of lengths in turns.
        plain: context and seconds of each plain token or, of a batch, round.
        prefill, plain_prefill: seconds, of one request.
    """

    candidate: str
    prompt_id: str
    batch_size: int
    prompt_tokens: int
    rounds: tuple[Round, ...]
    plain: tuple[tuple[float, float], ...]
    prefill: float
    plain_prefill: float
    turn: int = 0

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.candidate, self.prompt_id, self.batch_size, self.turn


@dataclass(frozen=True)
class Confirmed:
    """A setting that was run beside plain decoding of the same prompts.

    Args:
        candidate, num_tokens, batch_size: the setting.
        prompt_id: of the first of the prompts.
        category: of the prompts, empty where they have several.
        turn: how often it was run before.
        seconds, tokens, plain_seconds, plain_tokens: of both sides.
    """

    candidate: str
    num_tokens: int
    batch_size: int
    prompt_id: str
    category: str
    turn: int
    seconds: float
    tokens: int
    plain_seconds: float
    plain_tokens: int

    @property
    def key(self) -> tuple[str, int, int, str, int]:
        return self.candidate, self.num_tokens, self.batch_size, self.prompt_id, self.turn

    @property
    def speedup(self) -> float:
        """Ratio of tokens per second."""
        return (self.tokens / self.seconds) / (self.plain_tokens / self.plain_seconds)


@dataclass
class Records:
    """All that was recorded, in memory and in a file if there is one.

    Args:
        made_with: what the records depend on: model, sampler, versions, machine.
        path: of the file.
        shares: by candidate, of those whose drafts cost less at longer contexts.
    """

    made_with: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    outputs: dict[tuple[str, str], Output] = field(default_factory=dict)
    timings: dict[tuple[str, str, int, int], Timing] = field(default_factory=dict)
    confirmed: dict[tuple[str, int, int, str, int], Confirmed] = field(default_factory=dict)
    shares: dict[str, Shares] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str | os.PathLike[str], made_with: Mapping[str, Any]) -> Records:
        """Go on with a file, or begin one.

        Raises:
            ConfigError: for a file of other settings, or that is damaged.
        """
        records = cls(dict(made_with), Path(path))
        if not Path(path).exists():
            return records
        found = cls.read(path)
        for name in sorted({*found.made_with, *made_with}):
            before, now = found.made_with.get(name), made_with.get(name)
            if before != now:
                raise ConfigError(
                    f"{printable(path)} was recorded with {name} {before!r}, and now it is {now!r}; "
                    "name another file, or remove this one."
                )
        records.outputs, records.timings = found.outputs, found.timings
        records.confirmed, records.shares = found.confirmed, found.shares
        return records

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Records:
        """The records of a file.

        Raises:
            ConfigError: for a file that cannot be read or does not hold records, naming the line.
        """
        lines = read_text(path, "recorded rounds", ConfigError, most_bytes=MOST_BYTES).splitlines()
        records = cls(path=Path(path))
        for number, line in enumerate(lines, start=1):
            where = f"line {number} of {printable(path)}"
            content = parse_json(line, where, ConfigError)
            try:
                records._take(content, number == 1)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise ConfigError(f"{where} holds no recorded rounds ({error}).") from error
        if not lines:
            raise ConfigError(f"{printable(path)} is empty; record some rounds first.")
        return records

    def add(self, *records: Output | Timing | Confirmed | Shares) -> None:
        """Keep records, in the file too."""
        for record in records:
            if isinstance(record, Output):
                self.outputs[record.key] = record
            elif isinstance(record, Timing):
                self.timings[record.key] = record
            elif isinstance(record, Shares):
                self.shares[record.candidate] = record
            else:
                self.confirmed[record.key] = record
        self._save()

    def of(self, candidate: str) -> list[Output]:
        """The outputs of a candidate, in the order of their recording."""
        return [output for output in self.outputs.values() if output.candidate == candidate]

    def _take(self, content: Any, first: bool) -> None:
        if first:
            if content["format"] != FORMAT or content["version"] != VERSION:
                raise ValueError(f"it is not version {VERSION} of {FORMAT}")
            self.made_with = content["made_with"]
        elif "token_ids" in content:
            output = _made(Output, content)
            _check(output)
            self.outputs[output.key] = output
        elif "plain_seconds" in content:
            confirmed = _made(Confirmed, content)
            self.confirmed[confirmed.key] = confirmed
        elif "shares" in content:
            shares = _made(Shares, content)
            self.shares[shares.candidate] = shares
        else:
            rounds = tuple(Round(*values) for values in content["rounds"])
            timing = _made(Timing, {**content, "rounds": rounds})
            self.timings[timing.key] = timing

    def _save(self) -> None:
        if self.path is None:
            return
        head = {"format": FORMAT, "version": VERSION, "made_with": self.made_with}
        lines = [
            head,
            *map(asdict, self.outputs.values()),
            *map(_flat, self.timings.values()),
            *map(asdict, self.confirmed.values()),
            *map(asdict, self.shares.values()),
        ]
        write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in lines))


def _flat(timing: Timing) -> dict[str, Any]:
    """With each round as a list."""
    rounds = [list(asdict(one).values()) for one in timing.rounds]
    return {**asdict(timing), "rounds": rounds}


def _made(kind: type[Any], content: Mapping[str, Any]) -> Any:
    """A record of its fields, lists as tuples."""
    known = {one.name for one in fields(kind)}
    if content.keys() - known:
        raise ValueError(f"unknown {sorted(content.keys() - known)}")
    return kind(**{name: _tuples(value) for name, value in content.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check(output: Output) -> None:
    count = len(output.token_ids)
    for name in ("nodes", "depths", "accepted", "confidences"):
        if len(getattr(output, name)) != count:
            raise ValueError(f"{name} has not one entry for each of {count} tokens")
    if any(a > d for a, d in zip(output.accepted, output.depths, strict=True)):
        raise ValueError("more tokens are accepted than drafted")
