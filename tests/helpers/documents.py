"""The documents as tests see them: pages, their blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "CONTRIBUTING.md", "zoo/README.md", "docs/*.md")
    for page in ROOT.glob(pattern)
)
# Not examples: what commands print, and what the source says.
GENERATED = ("docs/cli.md",)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_OPERATORS = ("|", "&&", ";", ">", "<")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page that the text begins in."""

    language: str
    text: str
    line: int


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in these languages."""
    text = read(page)
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start(2)))
        for found in _FENCE.finditer(text)
        if found[1] in languages
    ]


def run(page: str, blocks: list[Block]) -> dict[str, Any]:
    """Run blocks of a page, which share their names, as a module; returns the names."""
    # Classes look for the module that they are made in.
    module = ModuleType(f"snippets of {page}")
    sys.modules[module.__name__] = module
    names = vars(module)
    for block in blocks:
        # Errors then point at the line of the page.
        exec(compile("\n" * block.line + block.text, str(ROOT / page), "exec"), names)
    return names


def commands_of(page: str) -> Iterator[list[str]]:
    """The commands in a page's blocks of shell, each as its arguments; in a pipe each part is one."""
    for block in blocks_of(page, "", "sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            if re.match(r"(forerun|make|python|pip|echo|cat)\b", line):
                yield from _parts(shlex.split(line, comments=True))


def _parts(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word in _OPERATORS:
            yield part
            part = []
            if word in "<>":
                # A file follows, which is no part of the command, and nothing after it.
                return
        else:
            part.append(word)
    yield part
