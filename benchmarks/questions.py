"""Prompts by category: held-out modules, question sets, and prompts whose answers copy from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.errors import ConfigError, UnknownNameError
from forerun.files import read_text
from forerun.models.zoo import zoo_path
from forerun.options import check
from recipes.heldout import load_prompts

SETS = ("humaneval", "gsm8k", "mt_bench")


@dataclass(frozen=True)
class Question:
    """One prompt.

    Args:
        question_id: unique in its category.
        category: one of CATEGORIES, or the name of a file.
        prompt: the text to continue.
        prediction: an expected output, or empty.
    """

    question_id: str
    category: str
    prompt: str
    prediction: str = ""


def load_questions(category: str, count: int) -> list[Question]:
    """The first `count` prompts of a category, or as many as there are.

    Raises:
        UnknownNameError: for an unknown category.
        ConfigError: for a count outside [1, 10000].
    """
    if category not in _CATEGORIES:
        raise UnknownNameError("category", category, _CATEGORIES)
    return _CATEGORIES[category](category)[: check("count", count, int, ge=1, le=10_000)]


def read_questions(path: Path) -> list[Question]:
    """Prompts from a file of JSON lines: with `prompt`, or with `turns` as in the question sets, of
    which the first is used.

    Raises:
        ConfigError: for a file that cannot be read, or any other line.
    """
    lines = read_text(path, "question file", ConfigError).splitlines()
    questions = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            questions.append(_question(line, f"line {number} of {path}", path.stem))
    if not questions:
        raise ConfigError(f"{path} is empty; give one question per line.")
    return questions


def _question(line: str, where: str, category: str) -> Question:
    try:
        content = json.loads(line)
        prompt = content["turns"][0] if "turns" in content else content["prompt"]
        prediction = content.get("prediction", "")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        prompt = None
    if not isinstance(prompt, str) or not prompt or not isinstance(prediction, str):
        raise ConfigError(f'{where} is not a question; write {{"prompt": "..."}}.')
    number = str(content.get("question_id", content.get("prompt_id", where)))
    return Question(number, category, prompt, prediction)


def _held_out(category: str) -> list[Question]:
    prompts = load_prompts(zoo_path().parent / "heldout.jsonl")
    return [Question(prompt.prompt_id, category, prompt.prompt) for prompt in prompts]


def _question_set(category: str) -> list[Question]:
    return read_questions(zoo_path().parent / "questions" / f"{category}.jsonl")


def _edits(category: str) -> list[Question]:
    """A held-out module with one line in ten edited, then its first lines again: the expected output
    copies the rest, but for the edited lines."""
    random = np.random.default_rng(0)
    questions = []
    for module in load_prompts(zoo_path().parent / "heldout.jsonl"):
        lines = module.prompt.splitlines(keepends=True)
        if len(lines) < 16:
            continue
        edited = list(lines)
        for at in random.choice(len(lines), max(1, len(lines) // 10), replace=False).tolist():
            edited[at] = edited[at].replace("self", "this").replace("=", " = ").replace("(", "( ")
        head = "".join(lines[:4])
        prompt = f"# before\n{''.join(edited)}\n# after\n{head}"
        questions.append(Question(module.prompt_id, category, prompt, "".join(edited[4:])))
    return questions


def _quotes(category: str) -> list[Question]:
    """A held-out module, and a docstring that begins to quote from its middle."""
    random = np.random.default_rng(1)
    questions = []
    for module in load_prompts(zoo_path().parent / "heldout.jsonl"):
        lines = module.prompt.splitlines(keepends=True)
        if len(lines) < 12:
            continue
        start = int(random.integers(1, len(lines) // 2))
        quoted = "".join(f"    > {line}" for line in lines[start : start + 2])
        prompt = (
            f'{module.prompt}\n\ndef summary():\n    """Quotes the code above.\n\n{quoted}    > '
        )
        rest = "    > ".join(lines[start + 2 :])
        questions.append(Question(module.prompt_id, category, prompt, rest))
    return questions


_CATEGORIES: dict[str, Callable[[str], list[Question]]] = {
    "heldout": _held_out,
    **dict.fromkeys(SETS, _question_set),
    "edits": _edits,
    "quotes": _quotes,
}
CATEGORIES = tuple(_CATEGORIES)
COPYING = ("edits", "quotes")
