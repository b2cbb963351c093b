"""Questions, and the one reader of their files: every command takes the same ones."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from forerun.engine.chat import check_messages, text_of
from forerun.errors import PromptError
from forerun.files import parse_json, printable, read_text, reason

# Sets of a million questions are large files.
MOST_BYTES = 2**31
# Keys that question sets use for a single text.
_KEYS = ("prompt", "question", "text")
_READ = ("system", "user", "assistant")
_LINES = ".jsonl"
FILES = (
    "JSON lines (turns, messages, prompt, question or text; also .gz), text with one a line, or a folder of "
    "such files and of texts that are one each."
)
"""Help of an option that names files of questions."""


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

    @property
    def opening(self) -> str:
        """System message and first turn as plain text, without a chat template."""
        return "\n\n".join(filter(None, (self.system, self.turns[0])))


def read_questions(
    paths: Sequence[str | os.PathLike[str]],
    on_bad: Callable[[PromptError], None] | None = None,
    *,
    by_file: bool = False,
) -> list[Question]:
    """Read the questions of UTF-8 files and folders; files whose name ends in `.gz` are unpacked.

    In `.jsonl`, every line is a string, or an object with `turns`, `messages`, `prompt`, `question` or
    `text`. An object may also hold a `category`, a `question_id` (or `task_id`) and a `prediction`.
    Assistant messages in `messages` are left out, because the model gives its own answers. In any other
    file, every line is a question. A folder stands for its `.jsonl` files, and for each of its other files
    as a whole: one question, of the category that the folder is called.

    Args:
        on_bad: called with the error for an invalid line, which is then left out.
        by_file: take the names of files for categories, or those of their folders where a file is called
            `question` or `questions`.

    Raises:
        PromptError: for an invalid line (names the file, the line and what is wrong), and for files and
            folders without questions.
    """
    questions: list[Question] = []
    for path in map(Path, paths):
        if not _is_folder(path):
            questions += _of_file(path, on_bad, by_file)
            continue
        read = [
            _of_file(file, on_bad, by_file)
            if file.name.removesuffix(".gz").endswith(_LINES)
            else _whole(file, path.name)
            for file in _files_of(path)
        ]
        if not any(read):
            raise PromptError(f"folder {printable(path)} holds no prompt; put files of text there.")
        questions += chain.from_iterable(read)
    return questions


def in_turns(questions: Sequence[Question], limit: int | None = None) -> list[Question]:
    """Order questions with categories alternating, so that the first few come from every category.

    The questions of a category have different ids afterwards.

    Args:
        limit: most questions of each category.
    """
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        groups[question.category].append(question)
    for group in groups.values():
        ids = [question.question_id for question in group]
        if len(set(ids)) < len(ids):
            group[:] = [
                replace(question, question_id=f"{question.source}/{question.question_id}/{number}")
                for number, question in enumerate(group)
            ]
    rows = zip_longest(*(group[:limit] for group in groups.values()))
    return [question for row in rows for question in row if question is not None]


def _of_file(
    path: Path, on_bad: Callable[[PromptError], None] | None, by_file: bool
) -> list[Question]:
    """Questions of a file, at least one."""
    name = path.name.removesuffix(".gz")
    source = name.rpartition(".")[0] or path.name
    text = read_text(path, "question file", PromptError, most_bytes=MOST_BYTES)
    questions = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        read: Question | None = Question((line.strip(),), source, source)
        if name.endswith(_LINES):
            try:
                read = _of_json(line, f"{printable(path)}, line {number}", source)
            except PromptError as error:
                if on_bad is None:
                    raise
                on_bad(error)
                continue
        if read is not None:
            questions.append(replace(read, question_id=read.question_id or str(number)))
    if not questions:
        raise PromptError(f"question file {printable(path)} is empty; give at least one question.")
    if by_file:
        category = path.name.partition(".")[0]
        if category in ("question", "questions"):
            category = path.absolute().parent.name
        questions = [replace(question, category=category) for question in questions]
    return questions


def _whole(file: Path, category: str) -> list[Question]:
    text = read_text(file, "prompt file", PromptError)
    return [Question((text,), category, category, question_id=file.name)] if text.strip() else []


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        # A name that no file can have is refused where it is read.
        return False


def _files_of(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.is_file() and file.name[0] != ".")
    except OSError as error:
        raise PromptError(f"folder {printable(folder)} cannot be read: {reason(error)}.") from error


def _of_json(line: str, where: str, source: str) -> Question | None:
    content = parse_json(line, where, PromptError)
    if "\\ud" in line.lower() and not _is_utf8(content):
        raise PromptError(f"{where} is not valid UTF-8; it holds half of a character.")
    if isinstance(content, str):
        if not content.strip():
            raise PromptError(f"{where} is an empty text; give one, or leave the line out.")
        return Question((content,), source, source)
    if not isinstance(content, Mapping):
        raise PromptError(f"{where} is not an object; {_keys()}.")
    if "forerun_data" in content:  # The first line of what `forerun train data` writes.
        return None
    category = content.get("category")
    category = category if isinstance(category, str) and category else source
    number = content.get("question_id", content.get("task_id", content.get("prompt_id", "")))
    prediction = content.get("prediction") or ""
    if not isinstance(prediction, str):
        raise PromptError(f"{where} holds a prediction that is not text; leave it out.")
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
