"""A sample of a user's prompts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from forerun.bench.workloads import built_in, in_turns, read_workload
from forerun.training.questions import Question


def read_sample(paths: Sequence[str | os.PathLike[str]], limit: int) -> list[Question]:
    """The first turns of some questions, numbered, of all categories in turns: those of files and
    folders, or else those that come along.

    Raises:
        PromptError: for a file that cannot be read or holds no questions, naming the line.
    """
    questions = read_workload(paths) if paths else built_in()
    return [
        replace(question, turns=question.turns[:1], question_id=str(number))
        for number, question in enumerate(in_turns(questions)[:limit])
    ]
