"""Interruptions (Ctrl-C): writes are complete or not begun, and no interruption is lost."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any

# Characters written at once: a writable stream takes this many, of at most four bytes each.
PIECE = 64


def wait_until_writable(stream: IO[str]) -> None:
    """Wait until a write will not block; an interruption ends the wait before anything is written.

    Only files, pipes and terminals of the system are waited for.
    """
    try:
        select.select([], [stream.fileno()], [])
    except (OSError, ValueError):
        return  # The write will report what is wrong.


@contextmanager
def held_back() -> Iterator[None]:
    """Delay an interruption until the block has ended; the block itself must not wait."""
    usual = _handler()
    if usual is None:
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


@contextmanager
def never_lost() -> Iterator[None]:
    """End the block with KeyboardInterrupt if an interruption comes, even if a library swallows it.

    Some libraries drop the interruption and fail with a misleading error of their own: safetensors
    reports a tensor of an unknown type.
    """
    usual = _handler()
    if usual is None:
        yield
        return
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, usual)
    if interrupted:
        raise KeyboardInterrupt


def _handler() -> Callable[[int, FrameType | None], Any] | None:
    """The handler of interruptions in this thread, or None if it cannot be replaced.

    Only the main thread is interrupted, and only a handler written in Python runs between two
    steps.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    usual = signal.getsignal(signal.SIGINT)
    return usual if callable(usual) else None
