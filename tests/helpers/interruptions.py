"""Interruptions at any line of forerun's own code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any


@contextmanager
def at_line(line: int, act: Callable[[], None]) -> Iterator[Callable[[], int]]:
    """Act at the given line, counted as forerun's own code runs in the block; counts the lines."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if "/forerun/" not in frame.f_code.co_filename:
            return None
        # `alone` calls nothing while it takes and gives back the lock: no signal is handled there.
        if event == "line" and frame.f_code.co_name != "alone":
            count += 1
            if count == line:
                act()
        return trace

    sys.settrace(trace)
    try:
        yield lambda: count
    finally:
        sys.settrace(None)


def interrupted_at(line: int) -> AbstractContextManager[Callable[[], int]]:
    """Ctrl-C at a line, which some of forerun's code delays."""
    return at_line(line, lambda: signal.raise_signal(signal.SIGINT))
