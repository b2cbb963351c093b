"""Reads files of questions, to answer or to keep out of training."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from forerun.engine.chat import check_messages, text_of
from forerun.errors import PromptError
from forerun.files import parse_json, printable, read_text

# Sets of a million questions are large files.
MOST_BYTES = 2**31
# Keys that question sets use for a single text.
_KEYS = ("prompt", "question", "text")
_READ = ("system", "user", "assistant")


@dataclass(frozen=True)
class Question:
    """A user's question, turn by turn.

    Args:
        turns: the user's turns, at least one.
        category: category in the file, else the name of the file.
        source: name of the file without its endings.
        system: system message before all turns; None leaves it to the chat template.
        question_id: id in the file, else the number of the line.
        prediction: expected answer, if the file holds one.
    """

    turns: tuple[str, ...]
    category: str
    source: str
    system: str | None = None
    question_id: str = field(default="", compare=False)
    prediction: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        return "\n".join(self.turns)


def read_questions(
    path: str | os.PathLike[str], on_bad: Callable[[PromptError], None] | None = None
) -> list[Question]:
    """Read the questions of a UTF-8 file, unpacked if its name ends in `.gz`.

    In `.jsonl`, every line is a string, or an object with `turns`, `messages`, `prompt`, `question` or
    `text`. An object may also hold a `category`, a `question_id` (or `task_id`) and a `prediction`.
    Assistant messages in `messages` are left out, because the model gives its own answers. In any other
    file, every line is a question.

    Args:
        on_bad: called with the error for an invalid line, which is then left out.

    Raises:
        PromptError: for an invalid line (names the file, the line and what is wrong), and for a file
            without questions.
    """
    source = _stem(path)
    text = read_text(path, "question file", PromptError, most_bytes=MOST_BYTES)
    lines = text.removeprefix("\ufeff").split("\n")
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if os.fspath(path).removesuffix(".gz").endswith(".jsonl"):
        questions = []
        for number, line in numbered:
            try:
                read = _of_json(line, f"{printable(path)}, line {number}", source)
            except PromptError as error:
                if on_bad is None:
                    raise
                on_bad(error)
                continue
            if read is not None:
                questions.append(replace(read, question_id=read.question_id or str(number)))
    else:
        questions = [
            Question((line.strip(),), source, source, question_id=str(number))
            for number, line in numbered
        ]
    if not questions:
        raise PromptError(f"question file {printable(path)} is empty; give at least one question.")
    return questions


def _stem(path: str | os.PathLike[str]) -> str:
    return PurePath(path).name.removesuffix(".gz").rpartition(".")[0] or PurePath(path).name


def _of_json(line: str, where: str, source: str) -> Question | None:
    content = parse_json(line, where, PromptError)
    if "\\ud" in line.lower() and not _is_utf8(content):
        raise PromptError(f"{where} is not valid UTF-8; it holds half of a character.")
    if isinstance(content, str):
        return Question((content,), source, source)
    if not isinstance(content, Mapping):
        raise PromptError(f"{where} is no object; {_keys()}.")
    if "forerun_data" in content:  # The first line of what `forerun train data` writes.
        return None
    category = content.get("category")
    category = category if isinstance(category, str) and category else source
    number = content.get("question_id", content.get("task_id", content.get("prompt_id", "")))
    prediction = content.get("prediction") or ""
    if not isinstance(prediction, str):
        raise PromptError(f"{where} holds a prediction that is no text; leave it out.")
    named = str(number)
    if "messages" in content:
        read = _of_messages(content["messages"], where, category, source)
        return replace(read, question_id=named, prediction=prediction)
    turns = content.get("turns", next((content[key] for key in _KEYS if key in content), None))
    turns = [turns] if isinstance(turns, str) else turns
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise PromptError(f"{where} holds no question; {_keys()}.")
    if not all(turn.strip() for turn in turns):
        raise PromptError(f"{where} holds an empty turn; leave it out.")
    return Question(tuple(turns), category, source, None, named, prediction)


def _of_messages(content: Any, where: str, category: str, source: str) -> Question:
    try:
        messages = check_messages(content)
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from None
    others = [message["role"] for message in messages if message["role"] not in _READ]
    if others:
        raise PromptError(f"{where} holds the role {others[0]!r}; it must be one of {_READ}.")
    systems = [text_of(message) for message in messages if message["role"] == "system"]
    turns = tuple(text_of(message) for message in messages if message["role"] == "user")
    if not turns:
        raise PromptError(f"{where} holds no message of a user; give at least one.")
    return Question(turns, category, source, "\n".join(systems) if systems else None)


def _is_utf8(content: Any) -> bool:
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _keys() -> str:
    return f"give one under any of turns, messages, {', '.join(_KEYS)}"
