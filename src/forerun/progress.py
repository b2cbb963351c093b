"""Progress and messages of long work, reported to the caller that watches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[str, int, int], None]
"""A function `watch(what, done, total)`; each kind of work counts in its own units."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_hear: ContextVar[Callable[[str], None] | None] = ContextVar("hear", default=None)


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Report this thread's progress to `watch` while the block runs."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Report to the watcher, if there is one, that `done` of `total` is done."""
    watch = _watch.get()
    if watch is not None:
        watch(what, done, total)


@contextmanager
def heard_by(hear: Callable[[str], None]) -> Iterator[None]:
    """Hand the sentences that this thread says to `hear` while the block runs."""
    token = _hear.set(hear)
    try:
        yield
    finally:
        _hear.reset(token)


def say(text: str) -> None:
    """Tell the listener, if there is one, a sentence that is not part of a result."""
    hear = _hear.get()
    if hear is not None:
        hear(text)
