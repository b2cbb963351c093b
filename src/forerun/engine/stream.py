"""Streams: the tokens of one request as they come, and its completion at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from forerun.engine.plain import decode_plain
from forerun.engine.requests import Completion, Running, TokenEvent
from forerun.engine.scheduler import Scheduler


class Stream:
    """An iterator of `TokenEvent`; `completion` is the result so far.

    Closing it, or dropping it, ends the request and frees its row.
    """

    def __init__(self, running: Running, events: Iterator[TokenEvent]) -> None:
        self._running, self._events = running, events

    def __iter__(self) -> Iterator[TokenEvent]:
        return self

    def __next__(self) -> TokenEvent:
        return next(self._events)

    def __repr__(self) -> str:
        running = self._running
        reason = running.progress.finish_reason
        return (
            f"Stream(request_id={self.request_id}, num_tokens={running.num_output_tokens}, "
            f"finish_reason={None if reason is None else str(reason)!r})"
        )

    @property
    def request_id(self) -> int:
        return self._running.request.request_id

    @property
    def completion(self) -> Completion:
        return self._running.completion()

    def close(self) -> None:
        """End the request; the generated tokens stay in `completion`."""
        close = getattr(self._events, "close", None)
        if close is not None:
            close()


def run_all(scheduler: Scheduler, requests: list[Running]) -> list[Completion]:
    """Queue requests and run rounds until all have ended; an error in one ends all."""
    try:
        scheduler.submit(requests)
        left = requests
        while left:
            scheduler.step()
            started = first_started(left)
            for running in started:
                if running.progress.error is not None:
                    raise running.progress.error
            going_on = [running for running in started if not running.finished]
            left = going_on + left[len(started) :]
    finally:
        scheduler.drop(requests)
    return [running.completion() for running in requests]


def first_started(requests: Iterable[Running]) -> list[Running]:
    """The leading requests that have started, up to the first that waits: they start in order."""
    return list(takewhile(lambda running: running.started, requests))


def follow(scheduler: Scheduler, running: Running) -> Iterator[TokenEvent]:
    """Queue a request and run rounds until it ends."""
    seen = 0
    try:
        scheduler.submit([running])
        # Rounds run by another thread may have brought tokens, even the last ones.
        while (events := running.events(seen)) or not running.finished:
            seen += len(events)
            yield from events
            if not running.finished:
                scheduler.step()
    finally:
        scheduler.drop([running])
    if running.progress.error is not None:
        raise running.progress.error


def follow_plain(scheduler: Scheduler, running: Running) -> Iterator[TokenEvent]:
    """Decode a request by the plain loop; its row takes no part in the rounds."""
    with scheduler.alone():
        scheduler.take_row(running)
    parts = scheduler.parts
    try:
        events = decode_plain(parts.target, parts.cache, running, parts.randomness, parts.eviction)
        while not running.finished:
            with scheduler.alone():
                # None if another thread has cancelled it meanwhile.
                event = next(events, None)
            if event is not None:
                yield event
    finally:
        scheduler.drop([running])
