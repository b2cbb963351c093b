"""Workloads: questions of files and folders, and small built-in ones, by category in turns."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from itertools import zip_longest
from pathlib import Path

from forerun.errors import PromptError, UnknownNameError
from forerun.files import printable, read_text, reason
from forerun.training.questions import Question, read_questions

BUILT_IN = ("code", "creative_writing", "json", "math", "qa", "summary", "xml")
"""Categories of the questions that come along."""
_DATA = "questions.jsonl"
_LINES = (".jsonl", ".jsonl.gz")


def built_in(categories: Sequence[str] = BUILT_IN) -> list[Question]:
    """The questions that come along, of some categories.

    Raises:
        UnknownNameError: for a category that does not exist.
    """
    for name in categories:
        if name not in BUILT_IN:
            raise UnknownNameError("built-in workload", name, BUILT_IN)
    with resources.as_file(resources.files("forerun.bench") / _DATA) as path:
        return [question for question in read_questions(path) if question.category in categories]


def read_workload(
    paths: Sequence[str | os.PathLike[str]],
    on_bad: Callable[[PromptError], None] | None = None,
    *,
    by_file: bool = False,
) -> list[Question]:
    """The questions of files and folders.

    A `.jsonl` file holds a question a line (`forerun.training.questions.read_questions`), any other file
    a prompt a line. A folder stands for its `.jsonl` files, and for each of its other files as a whole:
    one prompt, of the category that the folder is called.

    Args:
        on_bad: is told of lines that are no questions, which are then left out.
        by_file: whether files are the categories, by their names, or by their folders' where they are
            called as question sets are.

    Raises:
        PromptError: for what cannot be read, holds nothing, or is no question, naming file and line.
    """
    questions: list[Question] = []
    for path in map(Path, paths):
        files = _files_of(path) if path.is_dir() else [path]
        found: list[Question] = []
        for file in files:
            if path.is_dir() and not file.name.endswith(_LINES):
                found += _whole(file, path.name)
                continue
            read = read_questions(file, on_bad)
            found += [replace(q, category=_named_by(file)) for q in read] if by_file else read
        if not found:
            raise PromptError(f"folder {printable(path)} holds no prompt; put files of text there.")
        questions += found
    return questions


def _files_of(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.is_file() and file.name[0] != ".")
    except OSError as error:
        raise PromptError(f"folder {printable(folder)} cannot be read: {reason(error)}.") from error


def _named_by(file: Path) -> str:
    name = file.name.partition(".")[0]
    return file.absolute().parent.name if name in ("question", "questions") else name


def _whole(file: Path, category: str) -> list[Question]:
    text = read_text(file, "prompt file", PromptError)
    return [Question((text,), category, category, question_id=file.name)] if text.strip() else []


def in_turns(questions: Sequence[Question], limit: int | None = None) -> list[Question]:
    """The questions with their categories in turns, so that any beginning holds all of them alike.

    Args:
        limit: questions of each category at most.

    The questions of a category have different ids afterwards.
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
