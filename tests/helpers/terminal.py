"""The command line as it writes to a terminal."""

from __future__ import annotations

import os
import pty
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from forerun.cli.main import application

COLOURED = re.compile("\x1b\\[[0-9;]*m")
GREEN = "\x1b[32m"


def in_terminal(
    monkeypatch: pytest.MonkeyPatch,
    *args: str,
    term: str = "xterm-256color",
    talk: bool = False,
) -> str:
    """What a command writes to a terminal as its standard output.

    Args:
        talk: whether the terminal is its standard error too.
    """
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", term)
    # A terminal holds some kilobytes, and hands them out in parts: someone must read all the time.
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(_read_to_the_end, master)
        with os.fdopen(slave, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            if talk:
                patch.setattr(sys, "stderr", terminal)
            with pytest.raises(SystemExit) as ended:
                application.main(list(args), prog_name="forerun")
    os.close(master)
    assert not ended.value.code
    return written.result().decode().replace("\r\n", "\n")


def _read_to_the_end(terminal: int) -> bytes:
    parts = []
    with suppress(OSError):  # which is how Linux says that the other side has closed
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    return b"".join(parts)
