"""A program that a person talks with in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select

from tests.helpers.forked import start

PATIENCE = 120
SILENCE = 5
CTRL_C, CTRL_D = "\x03", "\x04"
# Colours, and what readline tells the terminal.
_CONTROL = re.compile("\x1b\\[[0-9;?]*[a-zA-Z]|\r")


class Session:
    """`forerun` in a pseudo-terminal of its own: standard input, output and error.

    Args:
        args: of the command line.
        settings: variables beside those of this process.
    """

    def __init__(self, *args: str, **settings: str) -> None:
        self._master, slave = pty.openpty()
        self.process = start(args, (slave, slave, slave), {"TERM": "xterm-256color", **settings})
        os.close(slave)
        self.raw, self._seen = "", 0

    def send(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def press(self, key: str) -> None:
        """Press Ctrl-C or Ctrl-D until something is shown: readline misses them right after its prompt.

        What readline tells the terminal, such as that a paste is bracketed, is no answer.
        """
        self.send(key)
        while not self._unseen():
            if not select.select([self._master], [], [], SILENCE)[0]:
                self.send(key)
            elif not self._read():
                return

    def expect(self, text: str) -> str:
        """Read until `text` has come, and return what came up to its end since the last call."""
        while text not in self._unseen():
            assert self._read(), f"ended before {text!r}: {self._unseen()}"
        shown = self._unseen()
        end = shown.index(text) + len(text)
        self._seen += end
        return shown[:end]

    def end(self) -> tuple[int | None, str]:
        """The exit code, and what came since the last call."""
        while self._read():
            pass
        os.close(self._master)
        self.process.join()
        return self.process.exitcode, self._unseen()

    def _unseen(self) -> str:
        return _CONTROL.sub("", self.raw)[self._seen :]

    def _read(self) -> bool:
        assert select.select([self._master], [], [], PATIENCE)[0], f"silent: {self._unseen()}"
        try:
            part = os.read(self._master, 1 << 16)
        except OSError:  # which is how Linux says that the other side has closed
            return False
        self.raw += part.decode(errors="replace")
        return bool(part)
