"""Conversations to train drafters on: their files, token ids, masks of the target's answers, and batches.

A conversation is written as a whole, so that a file can be read while it grows, and continued.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.errors import TrainingError, shown
from forerun.files import printable
from forerun.measure.ledger import Format

# Number of conversations sorted by length together, so that batches have little padding.
POOL = 512
# Minimum length of an answer in tokens, and as a share of its prompt; shorter ones are not worth the cost.
LEAST_ANSWER = 8
LEAST_SHARE = 0.2
# Small data has this share of its conversations held out, up to this number.
FLOOR, FLOOR_SHARE = 100, 0.1
# Fields that are left out of a line if they have their default.
_OPTIONAL = ("turn", "more", "skipped")
# Fields that a file made by others may lack.
_USUAL = {
    **dict.fromkeys(("source", "category", "finish", "prompt", "answer"), ""),
    "temperature": 1.0,
    "seed": 0,
    "item": 0,
}


@dataclass(frozen=True)
class Record:
    """An answer with its prompt.

    Args:
        source: file of the question, or `magpie` (`sampled` for a base model) if the model wrote it.
        category: category of the question.
        prompt_ids, answer_ids: token ids as they were run, with the template's tokens and the end of the
            answer.
        temperature: temperature of the answer; 0 for greedy.
        finish: finish reason: `stop`, or `length` for an answer that was cut.
        seed: seed of the request.
        prompt, answer: text of the user and text of the answer.
        item: number of the conversation, skipped ones counted.
        turn: turn of the conversation, from 0.
        more: True if the conversation continues with the next record.
        skipped: number of conversations skipped since the last record, by reason.
    """

    source: str
    category: str
    prompt_ids: list[int]
    answer_ids: list[int]
    temperature: float
    finish: str
    seed: int
    prompt: str
    answer: str
    item: int
    turn: int = 0
    more: bool = False
    skipped: dict[str, int] = field(default_factory=dict)


def _content(record: Record) -> dict[str, Any]:
    """Fields of a record, without optional ones that have their default."""
    return {name: v for name, v in vars(record).items() if v or name not in _OPTIONAL}


RECORDS = Format(
    mark="forerun_data",
    version=1,
    command="forerun train data",
    error=TrainingError,
    content=_content,
    parse=lambda content: Record(**{**_USUAL, **content}),
)
"""Format of the files; the header holds the settings of the run."""


@dataclass(frozen=True)
class Example:
    """A prompt and the target's own answer to it.

    Args:
        prompt_ids, answer_ids: token ids, including the template's; the answer ends with its stop token
            if it reached one.
        category: category of the prompt.
        temperature: temperature that the answer was drawn at.
    """

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    category: str = ""
    temperature: float = 1.0

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)


@dataclass(frozen=True)
class ExampleBatch:
    """Conversations side by side, padded at the end.

    Args:
        conversations: conversations in the order of the rows.
        token_ids: token ids, [B, S].
        answers: True for tokens that the target wrote, bool [B, S].
    """

    conversations: tuple[Example, ...]
    token_ids: Tensor
    answers: Tensor

    @classmethod
    def of(cls, conversations: Sequence[Example]) -> ExampleBatch:
        width = max(map(len, conversations))
        token_ids = torch.zeros(len(conversations), width, dtype=torch.long)
        answers = torch.zeros(len(conversations), width, dtype=torch.bool)
        for row, conversation in enumerate(conversations):
            tokens = conversation.prompt_ids + conversation.answer_ids
            token_ids[row, : len(tokens)] = torch.tensor(tokens)
            answers[row, len(conversation.prompt_ids) : len(tokens)] = True
        return cls(tuple(conversations), token_ids, answers)

    def to(self, device: torch.device) -> ExampleBatch:
        """A copy with its tensors on a device."""
        return replace(self, token_ids=self.token_ids.to(device), answers=self.answers.to(device))

    @property
    def temperatures(self) -> Tensor:
        """Temperature of each token of the answers, [R]; 1 for greedy ones."""
        rows = torch.tensor([example.temperature or 1.0 for example in self.conversations])
        return rows.to(self.answers.device)[self.answers.nonzero()[:, 0]]

    @property
    def tokens(self) -> int:
        """Number of tokens that are not padding."""
        return sum(map(len, self.conversations))


def read_conversations(
    paths: Sequence[str | Path], vocab_size: int, max_tokens: int
) -> tuple[list[Example], dict[str, int]]:
    """Read conversations that `forerun train data` wrote, and count those that are left out.

    Args:
        paths: files of JSON lines, also gzipped.
        vocab_size: the target's vocabulary size; ids lie below it.
        max_tokens: most tokens of prompt and answer; longer conversations are left out.

    Raises:
        TrainingError: for a file that cannot be read or has other content, and if no conversation is
            left to train on.
    """
    examples: list[Example] = []
    left_out = {"too long": 0, "hardly answered": 0}
    for path in paths:
        # Line 1 holds the settings.
        for number, record in enumerate(RECORDS.read(path), start=2):
            conversation = _conversation(record, f"{printable(path)}, line {number}", vocab_size)
            answer = len(conversation.answer_ids)
            if len(conversation) > max_tokens:
                left_out["too long"] += 1
            elif answer < max(LEAST_ANSWER, LEAST_SHARE * len(conversation.prompt_ids)):
                left_out["hardly answered"] += 1
            else:
                examples.append(conversation)
    if not examples:
        reason = "no conversation is there"
        if any(left_out.values()):
            reason = (
                f"no conversation is left to train on: {left_out['too long']} are longer than "
                f"{max_tokens} tokens and {left_out['hardly answered']} have hardly an answer"
            )
        names = ", ".join(map(printable, paths))
        raise TrainingError(f"{names}: {reason}; make more with 'forerun train data'.")
    return examples, left_out


def _conversation(record: Record, where: str, vocab_size: int) -> Example:
    for name in ("prompt_ids", "answer_ids"):
        ids = getattr(record, name)
        if not isinstance(ids, list) or not all(
            type(token) is int and 0 <= token < vocab_size for token in ids
        ):
            raise TrainingError(
                f"{where}: {name} is {shown(ids)}; it must be a list of token ids below {vocab_size}. "
                "Give what 'forerun train data' wrote for this target."
            )
    temperature = record.temperature
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise TrainingError(f"{where}: temperature is {shown(temperature)}; it must be a number.")
    ids = tuple(record.prompt_ids), tuple(record.answer_ids)
    return Example(*ids, str(record.category or record.source), float(temperature))


def held_out(
    conversations: Sequence[Example], seed: int, share: float = 0.02, most: int = 240
) -> tuple[list[Example], list[Example]]:
    """Split conversations into those to train on and those held out for validation.

    Every category and temperature is held out in proportion, with at least one conversation each as far
    as half of all remains to train on.

    Args:
        conversations: two or more conversations.
        seed: seed of the random choice.
        share: share of the conversations to hold out; for small data a tenth, up to 100 conversations.
        most: most conversations to hold out.

    Raises:
        TrainingError: for fewer than two conversations.
    """
    if len(conversations) < 2:
        raise TrainingError(
            f"{len(conversations)} conversations are too few: some are held out; give more."
        )
    order = list(range(len(conversations)))
    random.Random(seed).shuffle(order)
    groups: dict[tuple[str, float], list[int]] = defaultdict(list)
    for index in order:
        groups[conversations[index].category, conversations[index].temperature].append(index)
    # The first of each group, large groups before small ones, and then the rest in proportion.
    places = {
        index: (place / len(group), -len(group))
        for group in groups.values()
        for place, index in enumerate(group)
    }
    order.sort(key=places.__getitem__)
    floor = min(FLOOR, round(FLOOR_SHARE * len(order)))
    count = min(most, len(order) // 2, max(floor, round(share * len(order)), len(groups)))
    return (
        [conversations[index] for index in order[count:]],
        [conversations[index] for index in order[:count]],
    )


class BatchStream:
    """Micro-batches of similar lengths, in a random order that depends on (seed, epoch) alone.

    A run that resumes at some number of micro-batches sees the same ones as a run that never stopped.

    Args:
        conversations: conversations to batch.
        tokens: most tokens of a micro-batch, padding included.
        seed: seed of the order.
    """

    def __init__(self, conversations: Sequence[Example], tokens: int, seed: int) -> None:
        self.conversations, self.tokens, self.seed = conversations, tokens, seed
        self._epoch = lru_cache(maxsize=1)(self._make_epoch)
        self._starts = [0]

    def batch(self, number: int) -> ExampleBatch:
        """Micro-batch `number`, counted from 0 over all epochs."""
        while self._starts[-1] <= number:
            self._starts.append(self._starts[-1] + len(self._epoch(len(self._starts) - 1)))
        epoch = next(e for e in range(len(self._starts) - 1) if number < self._starts[e + 1])
        indices = self._epoch(epoch)[number - self._starts[epoch]]
        return ExampleBatch.of([self.conversations[index] for index in indices])

    def _make_epoch(self, epoch: int) -> list[list[int]]:
        order = list(range(len(self.conversations)))
        source = random.Random(f"{self.seed}/{epoch}")
        source.shuffle(order)
        batches: list[list[int]] = []
        for start in range(0, len(order), POOL):
            pool = sorted(order[start : start + POOL], key=lambda i: len(self.conversations[i]))
            batches += self._cut(pool)
        source.shuffle(batches)
        return batches

    def _cut(self, pool: Sequence[int]) -> Iterator[list[int]]:
        """Cut indices sorted by length into micro-batches; a conversation that is too long goes alone."""
        batch: list[int] = []
        for index in pool:
            if batch and len(self.conversations[index]) * (len(batch) + 1) > self.tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch
