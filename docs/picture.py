"""Draws docs/picture.svg: a real run of a real model, as a terminal shows it.

python docs/picture.py
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("picture.svg")
# That of `make demo`.
COMMAND = (
    "forerun generate -m smollm2 --prompt-file docs/demo_question.txt "
    "--temperature 0.2 --top-p 0.9 --seed 2 --compare"
)
WIDTH = 88

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


def draw(output: str) -> str:
    """The picture of a terminal with the command and its output."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, record=True, width=WIDTH, force_terminal=True)
        console.print(Text(f"$ {COMMAND}", "bold"))
        console.print(Text.from_ansi(settled(output)))
        picture = console.export_svg(title="forerun", unique_id="forerun")
    # Pictures in pages fetch nothing; the reader's own font is as good.
    return _FONTS.sub("", picture)


if __name__ == "__main__":
    PICTURE.write_text(draw(record()), encoding="utf-8")
