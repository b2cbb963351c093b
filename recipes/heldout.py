"""Prompts cut from held-out modules, and what can be said of the code that goes on from them."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from forerun.files import write_text
from recipes.corpus import Module

LINES = (8, 40)
_BEGINNINGS = ("def ", "class ", "async def ", "@")


@dataclass(frozen=True)
class HeldOutPrompt:
    """The first lines of a function or class of a held-out module."""

    prompt_id: str
    path: str
    prompt: str


def cut_prompts(modules: Iterable[Module], count: int, seed: int = 0) -> list[HeldOutPrompt]:
    """At most `count` prompts, spread over the modules, each some lines from a top-level definition on."""
    random = np.random.default_rng(seed)
    candidates = []
    for module in modules:
        lines = module.text.splitlines(keepends=True)
        starts = [at for at, line in enumerate(lines) if line.startswith(_BEGINNINGS)]
        for start in starts:
            length = int(random.integers(*LINES))
            text = "".join(lines[start : start + length])
            if start + length < len(lines) and 200 <= len(text) <= 2400:
                candidates.append((module.path, text))
    order = random.permutation(len(candidates))
    # One prompt a module first, then a second one, so that large modules don't crowd out the others.
    turn: Counter[str] = Counter()
    ranked = []
    for at in order.tolist():
        path, text = candidates[at]
        ranked.append((turn[path], path, text))
        turn[path] += 1
    ranked.sort(key=lambda entry: entry[0])
    return [
        HeldOutPrompt(f"heldout-{number:03d}", path, text)
        for number, (_, path, text) in enumerate(ranked[:count])
    ]


def save_prompts(path: Path, prompts: Sequence[HeldOutPrompt]) -> None:
    write_text(path, "".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts))


def parses_but_for_its_end(source: str) -> bool:
    """Whether `source` is Python once its last statement, which may be unfinished, is cut off.

    The cut takes lines from the end until the rest parses; it is one statement if all further
    lines of it are indented deeper than the first.
    """
    lines = source.splitlines()
    for end in range(len(lines), -1, -1):
        if _is_python("\n".join(lines[:end])):
            return _is_one_statement(lines[end:])
    return False


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _is_one_statement(lines: list[str]) -> bool:
    filled = [line for line in lines if line.strip()]
    if not filled:
        return True
    indents = [len(line) - len(line.lstrip()) for line in filled]
    # The clauses of one statement, its decorators and its closing brackets stand where it begins.
    same_statement = ("else", "elif", "except", "finally", ")", "]", "}", '"""', "'''", "@", "#")
    decorated = filled[0].lstrip().startswith(("@", "#"))
    for line, indent in zip(filled[1:], indents[1:], strict=True):
        begins = line.lstrip().startswith(same_statement)
        if indent <= indents[0] and not begins and not (decorated and indent == indents[0]):
            return False
        decorated = decorated and line.lstrip().startswith(("@", "#"))
    return True
