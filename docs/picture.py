"""Draws docs/picture.svg: `forerun demo`, as a terminal shows it.

python docs/picture.py
"""

from __future__ import annotations

import argparse
import html
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import forerun
from forerun.cli.demo import ANSWER_TOKENS, LONGEST_PROMPT, QUESTIONS

PICTURE = Path(__file__).with_name("picture.svg")
COMMAND = "forerun demo"
WIDTH = 88
# Tokens of a draft by which the drafter is told from another: what policy auto drafts depends on the hour.
LENGTH = 4

OPENS, ENDS = "<metadata>", "</metadata>"

_PARTS = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+")
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def record() -> str:
    """What the command writes to a terminal, escape sequences included.

    Raises:
        CalledProcessError: where it fails.
    """
    ours, theirs = pty.openpty()
    name, *words = COMMAND.split()
    program = Path(sys.executable).with_name(name)
    settings = {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "COLORTERM": ""}
    settings |= {name: "" for name in ("NO_COLOR", "FORCE_COLOR") if name in os.environ}
    process = subprocess.Popen(
        [program, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | settings,
        cwd=PICTURE.parents[1],
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # how Linux says that the other side is closed
        pass
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, COMMAND, b"".join(parts))
    return b"".join(parts).decode().replace("\r\n", "\n")


def settled(output: str) -> str:
    """What stands in the terminal in the end: lines that were cleared, as progress is, are gone."""
    lines, row = [""], 0
    for part in _PARTS.findall(output):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part[0] not in "\r\x1b" or part.endswith("m"):
            lines[row] += part
    return "\n".join(lines).rstrip()


def facts() -> list[dict[str, Any]]:
    """What is true of the picture wherever it is drawn: of each question the answer, and what is accepted of
    drafts of a fixed length."""
    config = {"policy": "fixed", "num_speculative_tokens": LENGTH}
    engine = forerun.load("smollm2", config, max_context=LONGEST_PROMPT + ANSWER_TOKENS)
    found = []
    for kind, question in QUESTIONS.items():
        with engine.idle_cache():
            pass
        asked = [{"role": "user", "content": question}]
        answer = engine.chat(asked, temperature=0.0, max_tokens=ANSWER_TOKENS)
        stats = answer.stats
        accepted = {"drafted": stats.num_draft_tokens, "accepted": stats.num_accepted_tokens}
        found.append({"kind": kind, "question": question, "text": answer.text, **accepted})
    return found


def facts_of(picture: str) -> Any:
    """What `facts` was when a picture was drawn."""
    return json.loads(html.unescape(picture.split(OPENS)[1].split(ENDS)[0]))


def draw(output: str, found: Any) -> str:
    """The picture of a terminal with the command and its output, and the facts in it."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, record=True, width=WIDTH, force_terminal=True)
        console.print(Text(f"$ {COMMAND}", "bold"))
        console.print(Text.from_ansi(settled(output)))
        picture = console.export_svg(title="forerun", unique_id="forerun")
    # Pictures in pages fetch nothing; the reader's own font is as good.
    picture = _FONTS.sub("", picture)
    end = picture.rindex("</svg>")
    return f"{picture[:end]}{OPENS}{html.escape(json.dumps(found))}{ENDS}\n{picture[end:]}"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PICTURE.write_text(draw(record(), facts()), encoding="utf-8")
