"""Data to train drafters on: a target's own answers, written to a file that a later run goes on with.

A drafter learns what its target says, so the answers of a data set are of no use; and a model that was
trained on conversations can write their first halves too (Magpie, arXiv 2406.08464).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.errors import ConfigError, TrainingError
from forerun.progress import report
from forerun.training.answering import Answering, Conversation
from forerun.training.overlap import KeptOut, Seen
from forerun.training.questions import Question
from forerun.training.records import Record, RecordFile
from forerun.training.settings import DataSettings

# Conversations where the model asks and nothing else is said.
USUAL_CONVERSATIONS = 1000
_NO_LIMIT = 2**62
# A model whose own prompts are skipped so many times in a row writes none that can be used.
_MOST_SKIPPED = 500
# Settings that say when to stop, not what is written: a later run may have others.
_BUDGETS = ("num_conversations", "num_tokens")


@dataclass
class Summary:
    """What a file holds, and how fast the last run was.

    Args:
        conversations, answers: written, by this run and those before.
        prompt_tokens, answer_tokens: of them.
        categories, finishes: answers by category and by how they ended.
        greedy: answers that are greedy.
        skipped: conversations that were left out, by reason.
        new_conversations: of this run.
        new_tokens: that this run drew, of prompts that the model wrote too.
        seconds: of this run.
    """

    conversations: int = 0
    answers: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)
    greedy: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    new_conversations: int = 0
    new_tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        counted = {name: dict(v) if isinstance(v, Counter) else v for name, v in vars(self).items()}
        return {**counted, "tokens_per_second": self.tokens_per_second}

    def count(self, record: Record) -> None:
        """Add a record of the file."""
        self.conversations += not record.more
        self.answers += 1
        self.prompt_tokens += len(record.prompt_ids)
        self.answer_tokens += len(record.answer_ids)
        self.categories[record.category] += 1
        self.finishes[record.finish] += 1
        self.greedy += record.temperature == 0
        self.skipped.update(record.skipped)


class DataRun:
    """Has a target write conversations to a file, from where the file ends.

    Args:
        engine: of the target, without a drafter.
        path: of the file.
        settings: how to draw, and when to stop.
        model: the target's name, for the file.
        questions: to answer; None has the target write them.
        keep_out: questions of an evaluation, which are not asked.
        system: a message before all conversations that have none.
        variables: of the chat template.

    Raises:
        TrainingError: for a file that was made otherwise, or cannot be written.
        ForerunError: for an engine, a system message or variables that do not fit.

    Attributes:
        summary: of what the file holds.
        making: how it is made, as its first line says.
        device: of the target.
    """

    def __init__(
        self,
        engine: Engine,
        path: str | os.PathLike[str],
        settings: DataSettings,
        *,
        model: str,
        questions: Sequence[Question] | None = None,
        keep_out: Iterable[Question] = (),
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        if engine.tokenizer is None or engine.drafter is not None:
            raise ConfigError("data is made by an engine with a tokenizer and without a drafter.")
        _check_room(engine, settings)
        self.summary, self._settings, self._engine = Summary(), settings, engine
        self._questions = questions
        kept = list(keep_out)
        self._seen, self._next = Seen(settings.similarity), 0
        kept_out = KeptOut(turn for question in kept for turn in question.turns)
        variables = dict(variables or {})
        self._answering = Answering(
            engine, settings, questions, system, variables, kept_out, self._seen
        )
        self.device = engine.target.device
        self.making = {
            "model": model,
            "dtype": str(engine.target.precision),
            "max_context": engine.max_context,
            "template": template_hash(engine.tokenizer),
            "system": system,
            "template_vars": variables,
            "questions": None if questions is None else _digest(questions),
            "keep_out": _digest(kept) if kept else None,
            **{name: value for name, value in vars(settings).items() if name not in _BUDGETS},
        }
        self._file = RecordFile(path, self.making, self._resume)

    def __enter__(self) -> DataRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def run(self) -> Summary:
        """Write until the settings' limits are reached or there are no more questions.

        Raises:
            TrainingError: for a model whose own prompts cannot be used, and a full disk; what is in the
                file is whole then.
        """
        started, before = perf_counter(), self._engine.stats.num_emitted_tokens
        waiting: Counter[str] = Counter()
        try:
            with closing(self._conversations()) as conversations:
                for conversation in conversations:
                    self._take(conversation, waiting)
                    if self._enough():
                        break
        finally:
            self.summary.seconds += perf_counter() - started
            self.summary.new_tokens += self._engine.stats.num_emitted_tokens - before
        self.summary.skipped.update(waiting)
        return self.summary

    def _resume(self, record: Record) -> None:
        """Take in a record that the file holds already."""
        self.summary.count(record)
        if record.turn == 0:
            whole = record.prompt
            if self._questions is not None:
                whole = self._questions[record.item].text
            self._seen.take(whole)
        self._next = record.item + 1

    def _conversations(self) -> Generator[Conversation]:
        if not self._enough():
            wanted = self._wanted - self.summary.conversations
            yield from self._answering.conversations(self._next, wanted)

    @property
    def _wanted(self) -> int:
        settings = self._settings
        if settings.num_conversations is not None:
            return settings.num_conversations
        endless = self._questions is not None or settings.num_tokens is not None
        return _NO_LIMIT if endless else USUAL_CONVERSATIONS

    def _enough(self) -> bool:
        tokens = self._settings.num_tokens
        full = tokens is not None and self.summary.answer_tokens >= tokens
        return full or self.summary.conversations >= self._wanted

    def _take(self, conversation: Conversation, waiting: Counter[str]) -> None:
        """Write a conversation down, or count why it was skipped: the next one's record says so."""
        if conversation.skipped:
            waiting[conversation.skipped] += 1
            if self._questions is None and waiting.total() >= _MOST_SKIPPED:
                raise TrainingError(
                    f"{_MOST_SKIPPED} prompts in a row that the model wrote cannot be used "
                    f"({_listed(waiting)}); give it questions from a file."
                )
        else:
            first, *others = conversation.records
            records = [replace(first, skipped=dict(waiting)), *others]
            self._file.add(records)
            waiting.clear()
            for record in records:
                self.summary.count(record)
            self.summary.new_conversations += 1
        self._report(conversation.item)

    def _report(self, item: int) -> None:
        tokens, wanted = self._settings.num_tokens, self._wanted
        if tokens is not None:
            report("answers (tokens)", self.summary.answer_tokens, tokens)
        elif self._questions is not None:
            report("questions", item + 1, len(self._questions))
        else:
            report("conversations", self.summary.conversations, wanted)


def template_hash(tokenizer: Any) -> str | None:
    """A name for a tokenizer's chat template, SHA-256; None for a tokenizer without one."""
    template = ChatTemplate.of(tokenizer)
    return None if template is None else hashlib.sha256(template.source.encode()).hexdigest()


def _digest(questions: Iterable[Question]) -> str:
    """A name for questions: other questions have another."""
    found = hashlib.sha256()
    for question in questions:
        found.update(json.dumps(vars(question)).encode())
    return found.hexdigest()


def _check_room(engine: Engine, settings: DataSettings) -> None:
    longest = max(settings.max_tokens, settings.prompt_tokens)
    if longest >= engine.max_context:
        raise ConfigError(
            f"answers of {settings.max_tokens} tokens after prompts of up to {settings.prompt_tokens} do "
            f"not fit a context of {engine.max_context}; ask for fewer or for a longer context."
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
