"""Questions in files: those that a model is to answer, and those that its training must not see."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from forerun.engine.chat import check_messages, text_of
from forerun.errors import PromptError
from forerun.files import parse_json, printable, read_text

# Sets of a million questions are some of the longest files that there are.
MOST_BYTES = 2**31
# The keys of question sets for a single text.
_KEYS = ("prompt", "question", "text")
_READ = ("system", "user", "assistant")


@dataclass(frozen=True)
class Question:
    """What a user says, turn by turn.

    Args:
        turns: one at least.
        category: as the file names it, else the name of the file.
        source: the name of the file without its endings.
        system: a message before all turns; None leaves that to the chat template.
    """

    turns: tuple[str, ...]
    category: str
    source: str
    system: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.turns)


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """The questions of a UTF-8 file, unpacked where its name ends in `.gz`.

    In `.jsonl` every line is an object with `turns`, `messages`, `prompt`, `question` or `text`, and
    perhaps a `category`, or a text alone. What an assistant says in `messages` is left out: a model
    answers by itself. In any other file every line is a question.

    Raises:
        PromptError: naming the file, the line and what is wrong with it; also for no questions.
    """
    source = _stem(path)
    text = read_text(path, "question file", PromptError, most_bytes=MOST_BYTES)
    lines = text.removeprefix("\ufeff").split("\n")
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if os.fspath(path).removesuffix(".gz").endswith(".jsonl"):
        places = ((line, f"{printable(path)}, line {number}") for number, line in numbered)
        read = [_of_json(line, where, source) for line, where in places]
        questions = [question for question in read if question is not None]
    else:
        questions = [Question((line.strip(),), source, source) for _, line in numbered]
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
    if "messages" in content:
        return _of_messages(content["messages"], where, category, source)
    turns = content.get("turns", next((content[key] for key in _KEYS if key in content), None))
    turns = [turns] if isinstance(turns, str) else turns
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise PromptError(f"{where} holds no question; {_keys()}.")
    return Question(tuple(turns), category, source)


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
