"""Data to train drafters on: writes a target's own answers to a file that a later run can continue.

A drafter must learn what its target says, so the answers of a data set are of no use. A model that was
trained on conversations can write the questions too (Magpie, arXiv 2406.08464).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.errors import ConfigError, TrainingError
from forerun.measure.ledger import Ledger
from forerun.measure.questions import Question
from forerun.progress import report
from forerun.training.answering import Answering, Exchange, KeptOut, key_of
from forerun.training.conversations import RECORDS, Record
from forerun.training.settings import DataSettings

# Default number of conversations if the model writes the questions and no limit is given.
USUAL_CONVERSATIONS = 1000
# After this many skipped prompts in a row, the model's own prompts count as unusable.
_MOST_SKIPPED = 500


@dataclass
class Summary:
    """Summary of a file's content and of the speed of the last run.

    Args:
        conversations, answers: number written, by this run and earlier ones.
        prompt_tokens, answer_tokens: tokens of their prompts and answers.
        categories, finishes: number of answers by category and by finish reason.
        greedy: number of greedy answers.
        skipped: number of conversations left out, by reason.
        new_conversations: conversations of this run.
        new_tokens: tokens that this run drew, including prompts that the model wrote.
        seconds: time of this run.
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
        """The summary, ready for JSON."""
        counted = {name: dict(v) if isinstance(v, Counter) else v for name, v in vars(self).items()}
        return {**counted, "tokens_per_second": self.tokens_per_second}

    def count(self, record: Record) -> None:
        """Count a record of the file."""
        self.conversations += not record.more
        self.answers += 1
        self.prompt_tokens += len(record.prompt_ids)
        self.answer_tokens += len(record.answer_ids)
        self.categories[record.category] += 1
        self.finishes[record.finish] += 1
        self.greedy += record.temperature == 0
        self.skipped.update(record.skipped)


class DataRun:
    """A run in which a target writes conversations to a file, continuing where the file ends.

    Args:
        engine: engine of the target, without a drafter.
        path: path of the file.
        settings: sampling settings and limits.
        model: name of the target, for the file.
        questions: questions to answer; None lets the target write them.
        keep_out: questions of an evaluation, which must not be asked.
        system: system message for all conversations without their own.
        variables: variables of the chat template.

    Raises:
        TrainingError: for a file that was made by other settings, or cannot be written.
        ForerunError: for an engine, a system message or variables that do not fit.

    Attributes:
        summary: summary of the file's content.
        making: settings that the file is made by, as in its first line.
        device: device of the target.
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
        unwanted = list(keep_out)
        self._seen, self._next = set[str](), 0
        kept_out = KeptOut(turn for question in unwanted for turn in question.turns)
        variables = dict(variables or {})
        self._answering = Answering(
            engine, settings, questions, system, variables, kept_out, self._seen
        )
        self.device, template = engine.target.device, ChatTemplate.of(engine.tokenizer)
        self.making = {
            "model": model,
            "dtype": str(engine.target.precision),
            "max_context": engine.max_context,
            "template": template and template.sha256,
            "system": system,
            "template_vars": variables,
            "questions": None if questions is None else _digest(questions),
            "keep_out": _digest(unwanted) if unwanted else None,
            **{
                name: value for name, value in vars(settings).items() if name != "num_conversations"
            },
        }
        self._file = Ledger(path, RECORDS, self.making, self._resume)

    def __enter__(self) -> DataRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def run(self) -> Summary:
        """Write conversations until the settings' limits are reached or the questions end.

        Raises:
            TrainingError: for a model whose own prompts cannot be used, and for a full disk; the file
                then holds complete records only.
        """
        started, before = perf_counter(), self._engine.stats.num_emitted_tokens
        waiting: Counter[str] = Counter()
        try:
            left = self.wanted - self.summary.conversations
            for exchange in self._answering.conversations(self._next, left):
                self._take(exchange, waiting)
        finally:
            self.summary.seconds += perf_counter() - started
            self.summary.new_tokens += self._engine.stats.num_emitted_tokens - before
        self.summary.skipped.update(waiting)
        return self.summary

    def _resume(self, record: Record) -> None:
        """Count a record that the file already holds."""
        self.summary.count(record)
        if record.turn == 0:
            whole = record.prompt
            if self._questions is not None:
                whole = self._questions[record.item].text
            self._seen.add(key_of(whole))
        self._next = record.item + 1

    @property
    def wanted(self) -> int:
        """Most conversations of the file."""
        if self._settings.num_conversations is not None:
            return self._settings.num_conversations
        return USUAL_CONVERSATIONS if self._questions is None else len(self._questions)

    def _take(self, exchange: Exchange, waiting: Counter[str]) -> None:
        """Write a conversation, or count the reason why it was skipped, for the next record."""
        if exchange.skipped:
            waiting[exchange.skipped] += 1
            if self._questions is None and waiting.total() >= _MOST_SKIPPED:
                reasons = ", ".join(f"{count} {name}" for name, count in waiting.most_common())
                raise TrainingError(
                    f"{_MOST_SKIPPED} prompts in a row that the model wrote cannot be used "
                    f"({reasons}); give it questions from a file."
                )
        else:
            first, *others = exchange.records
            records = [replace(first, skipped=dict(waiting)), *others]
            self._file.append(records)
            waiting.clear()
            for record in records:
                self.summary.count(record)
            self.summary.new_conversations += 1
        if self._questions is not None:
            report("questions", exchange.item + 1, len(self._questions))
        else:
            report("conversations", self.summary.conversations, self.wanted)


def _digest(questions: Iterable[Question]) -> str:
    """SHA-256 of questions, which identifies them."""
    texts = (json.dumps(vars(question)) for question in questions)
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _check_room(engine: Engine, settings: DataSettings) -> None:
    longest = max(settings.max_tokens, settings.prompt_tokens)
    if longest >= engine.max_context:
        raise ConfigError(
            f"answers of {settings.max_tokens} tokens after prompts of up to {settings.prompt_tokens} do "
            f"not fit a context of {engine.max_context}; ask for fewer or for a longer context."
        )
