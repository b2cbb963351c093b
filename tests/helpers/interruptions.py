"""Interruptions at any line of forerun's own code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupted_at(line: int) -> Iterator[None]:
    """Ctrl-C at a line of forerun's own code, counted as it runs in the block; some of it delays that."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if "/forerun/" not in frame.f_code.co_filename:
            return None
        # `alone` calls nothing while it takes and gives back the lock: no signal is handled there.
        if event == "line" and frame.f_code.co_name != "alone":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
