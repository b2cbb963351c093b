"""Work that an interruption must find done or not begun."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """Have an interruption (Ctrl-C) wait until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread is interrupted.
        return
    waiting: list[tuple[int, FrameType | None]] = []
    usual = signal.signal(signal.SIGINT, lambda *interruption: waiting.append(interruption))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if waiting and callable(usual):
            usual(*waiting[0])
