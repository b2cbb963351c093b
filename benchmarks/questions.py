"""Prompts by category: held-out modules, question sets, and prompts whose answers copy from them.

python -m benchmarks.questions FOLDER writes them for `forerun bench --prompts FOLDER`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from forerun.errors import UnknownNameError
from forerun.files import write_text
from forerun.measure.questions import Question, read_questions
from forerun.models.zoo import packaged_path
from forerun.options import check

SETS = ("humaneval", "gsm8k", "mt_bench")


def load_questions(category: str, count: int) -> list[Question]:
    """The first `count` questions of a category, or as many as there are.

    Raises:
        UnknownNameError: for an unknown category.
        ConfigError: for a count outside [1, 10000].
    """
    if category not in _CATEGORIES:
        raise UnknownNameError("category", category, _CATEGORIES)
    return _CATEGORIES[category](category)[: check("count", count, int, ge=1, le=10_000)]


def write_questions(folder: Path) -> None:
    """A file for each category, of one turn a question."""
    for category in CATEGORIES:
        lines = [
            json.dumps(
                {
                    "question_id": question.question_id,
                    "category": category,
                    "turns": question.turns[:1],
                    "prediction": question.prediction,
                }
            )
            for question in load_questions(category, 10_000)
        ]
        write_text(folder / f"{category}.jsonl", "\n".join(lines) + "\n")


def _held_out(category: str) -> list[Question]:
    read = read_questions([packaged_path("zoo").parent / "heldout.jsonl"])
    return [replace(question, category=category, source=category) for question in read]


def _question_set(category: str) -> list[Question]:
    return read_questions([packaged_path("zoo").parent / "questions" / f"{category}.jsonl"])


def _edits(category: str) -> list[Question]:
    """A held-out module with one line in ten edited, then its first lines again: the expected output
    copies the rest, but for the edited lines."""
    random = np.random.default_rng(0)
    questions = []
    for question in _held_out(category):
        lines = question.opening.splitlines(keepends=True)
        if len(lines) < 16:
            continue
        edited = list(lines)
        for at in random.choice(len(lines), max(1, len(lines) // 10), replace=False).tolist():
            edited[at] = edited[at].replace("self", "this").replace("=", " = ").replace("(", "( ")
        head = "".join(lines[:4])
        prompt = f"# before\n{''.join(edited)}\n# after\n{head}"
        questions.append(replace(question, turns=(prompt,), prediction="".join(edited[4:])))
    return questions


def _quotes(category: str) -> list[Question]:
    """A held-out module, and a docstring that begins to quote from its middle."""
    random = np.random.default_rng(1)
    questions = []
    for question in _held_out(category):
        lines = question.opening.splitlines(keepends=True)
        if len(lines) < 12:
            continue
        start = int(random.integers(1, len(lines) // 2))
        quoted = "".join(f"    > {line}" for line in lines[start : start + 2])
        prompt = (
            f'{question.opening}\n\ndef summary():\n    """Quotes the code above.\n\n{quoted}    > '
        )
        rest = "    > ".join(lines[start + 2 :])
        questions.append(replace(question, turns=(prompt,), prediction=rest))
    return questions


_CATEGORIES: dict[str, Callable[[str], list[Question]]] = {
    "heldout": _held_out,
    **dict.fromkeys(SETS, _question_set),
    "edits": _edits,
    "quotes": _quotes,
}
CATEGORIES = tuple(_CATEGORIES)
COPYING = ("edits", "quotes")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where a file for each category is written")
    write_questions(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
