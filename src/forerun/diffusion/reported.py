"""Reports the progress of a pipeline's own loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from forerun.progress import report


class _Steps:
    """Replacement for a pipeline's progress bar that reports the steps.

    A pipeline either iterates over it, or calls `update` after each step.
    """

    def __init__(self, iterable: Sequence[Any] | None = None, total: int | None = None) -> None:
        self.steps = () if iterable is None else iterable
        self.total = len(self.steps) if total is None else total
        self.done = 0

    def update(self, count: int = 1) -> None:
        self.done += count
        report("denoising steps", self.done, self.total)

    def __iter__(self) -> Iterator[Any]:
        for step in self.steps:
            yield step
            self.update()

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@contextmanager
def reported(pipeline: Any) -> Iterator[None]:
    """Report the steps of a pipeline's loop while the block runs, in place of its progress bar."""
    with patch.object(pipeline, "progress_bar", _Steps):
        yield
