"""Built-in questions to measure with, by category."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from forerun.errors import UnknownNameError
from forerun.measure.questions import Question, read_questions

BUILT_IN = ("code", "creative_writing", "json", "math", "qa", "summary", "xml")
"""Categories of the questions that come along."""
_DATA = "questions.jsonl"


def built_in(categories: Sequence[str] = BUILT_IN) -> list[Question]:
    """The questions that come along, of some categories.

    Raises:
        UnknownNameError: for a category that does not exist.
    """
    for name in categories:
        if name not in BUILT_IN:
            raise UnknownNameError("built-in workload", name, BUILT_IN)
    with resources.as_file(resources.files("forerun.bench") / _DATA) as path:
        return [question for question in read_questions([path]) if question.category in categories]
