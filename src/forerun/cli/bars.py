"""Progress bars for long work, on standard error and only in a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from forerun.progress import Watch, watched_by

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

# Seconds before bars appear, so that short work shows none.
DELAY = 0.5
# Seconds between two drawings of them: a drawing takes milliseconds.
PAUSE = 0.1
_NAME = 32


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a line in a terminal while work runs whose progress is unknown."""
    shown = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if shown:
        sys.stderr.write(f"{text} …")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


@contextmanager
def bars(console: Console | None = None) -> Iterator[Watch]:
    """Show a bar for each kind of work that the block reports; remove them at its end.

    Args:
        console: standard error unless given.
    """
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = console or RichConsole(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda *_: None
        return
    columns = (
        TextColumn(f"{{task.description:.{_NAME}}}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    # No thread redraws them: work is timed while they are shown.
    shown = _Bars(Progress(*columns, console=console, transient=True, auto_refresh=False))
    try:
        with watched_by(shown):
            yield shown
    finally:
        shown.progress.stop()


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._due = perf_counter() + DELAY
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        now = perf_counter()
        ended = what in self._tasks and done >= total
        if now < self._due and not ended:
            return
        self._due = now + PAUSE
        if not self._tasks:
            self.progress.start()
        if what not in self._tasks:
            # What was done before is not part of the speed.
            self._tasks[what] = self.progress.add_task(what, total=total, completed=done)
        # A bar that stands at its end would look like work that hangs.
        self.progress.update(
            self._tasks[what], completed=done, total=total, visible=not ended, refresh=True
        )
