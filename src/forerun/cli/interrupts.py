"""Writing that an interruption finds done or not begun, and never waiting."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO

# Characters written at once: what is writable at all takes so many, in at most four bytes each.
PIECE = 64


def wait_until_writable(stream: IO[str]) -> None:
    """Wait until a write does not: an interruption (Ctrl-C) ends this wait, with nothing written.

    A stream that is no file, pipe or terminal of the system is taken as it is.
    """
    try:
        select.select([], [stream.fileno()], [])
    except (OSError, ValueError):
        return  # What is wrong with it, the write will say.


@contextmanager
def held_back() -> Iterator[None]:
    """Have an interruption wait until the block has ended; the block itself must not wait."""
    usual = signal.getsignal(signal.SIGINT)
    # Only the main thread is interrupted, and only a handler of Python's comes between two steps.
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *interruption: waiting.append(interruption))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if waiting:
            usual(*waiting[0])
