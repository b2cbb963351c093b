"""Progress of long work, reported to the caller that watches it, if one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[str, int, int], None]
"""`watch(what, done, total)`; each kind of work counts in units of its own."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Tell `watch` of the progress that this thread makes while the block runs."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Tell whoever watches that `done` of `total` is done."""
    watch = _watch.get()
    if watch is not None:
        watch(what, done, total)
