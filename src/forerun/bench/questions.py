"""Prompts by category: held-out modules, question sets, and prompts whose answer copies from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.checks import one_of, whole
from forerun.errors import ConfigError
from forerun.models.zoo import zoo_path
from forerun.training.heldout import load_prompts

SETS = ("humaneval", "gsm8k", "mt_bench")


@dataclass(frozen=True)
class Question:
    """One prompt.

    Args:
        question_id: unique in its category.
        category: of the table.
        prompt: the text to go on from.
        prediction: an output that is expected, where there is one.
    """

    question_id: str
    category: str
    prompt: str
    prediction: str = ""


def load_questions(category: str, count: int) -> list[Question]:
    """The first `count` prompts of a category, or as many as there are.

    Raises:
        ConfigError: for a category that does not exist.
    """
    read = _CATEGORIES[one_of(_CATEGORIES)("category", category)]
    return read(category)[: whole(1, 10_000)("the number of prompts", count)]


def read_questions(path: Path) -> list[Question]:
    """Prompts from a file of one's own, JSON lines: with `turns`, as the question sets have them, of
    which the first is asked, or with `prompt`.

    Raises:
        ConfigError: for a file that cannot be read, or a line that is something else.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the questions {path} cannot be read: {error}.") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            found.append(_question(line, f"line {number} of {path}", path.stem))
    if not found:
        raise ConfigError(f"{path} holds no question; give one on each line.")
    return found


def _question(line: str, where: str, category: str) -> Question:
    try:
        content = json.loads(line)
        prompt = content["turns"][0] if "turns" in content else content["prompt"]
        prediction = content.get("prediction", "")
    except (ValueError, TypeError, LookupError, AttributeError):
        prompt = None
    if not isinstance(prompt, str) or not prompt or not isinstance(prediction, str):
        raise ConfigError(f'{where} is no question; write {{"prompt": "..."}}.')
    number = str(content.get("question_id", content.get("prompt_id", where)))
    return Question(number, category, prompt, prediction)


def _held_out(category: str) -> list[Question]:
    prompts = load_prompts(zoo_path().parent / "heldout.jsonl")
    return [Question(one.prompt_id, category, one.prompt) for one in prompts]


def _question_set(category: str) -> list[Question]:
    return read_questions(zoo_path().parent / "questions" / f"{category}.jsonl")


def _edits(category: str) -> list[Question]:
    """A held-out module twice: its lines with one in ten renamed, then its own first lines again, so
    that what follows is a copy of what stands above but for those lines."""
    random = np.random.default_rng(0)
    found = []
    for one in load_prompts(zoo_path().parent / "heldout.jsonl"):
        lines = one.prompt.splitlines(keepends=True)
        if len(lines) < 16:
            continue
        edited = list(lines)
        for at in random.choice(len(lines), max(1, len(lines) // 10), replace=False).tolist():
            edited[at] = edited[at].replace("self", "this").replace("=", " = ").replace("(", "( ")
        head = "".join(lines[:4])
        prompt = f"# before\n{''.join(edited)}\n# after\n{head}"
        found.append(Question(one.prompt_id, category, prompt, "".join(edited[4:])))
    return found


def _quotes(category: str) -> list[Question]:
    """A held-out module, and a docstring that begins to quote it from somewhere in the middle."""
    random = np.random.default_rng(1)
    found = []
    for one in load_prompts(zoo_path().parent / "heldout.jsonl"):
        lines = one.prompt.splitlines(keepends=True)
        if len(lines) < 12:
            continue
        start = int(random.integers(1, len(lines) // 2))
        quoted = "".join(f"    > {line}" for line in lines[start : start + 2])
        prompt = f'{one.prompt}\n\ndef summary():\n    """Quotes the code above.\n\n{quoted}    > '
        rest = "    > ".join(lines[start + 2 :])
        found.append(Question(one.prompt_id, category, prompt, rest))
    return found


_CATEGORIES: dict[str, Callable[[str], list[Question]]] = {
    "heldout": _held_out,
    **dict.fromkeys(SETS, _question_set),
    "edits": _edits,
    "quotes": _quotes,
}
CATEGORIES = tuple(_CATEGORIES)
COPYING = ("edits", "quotes")
