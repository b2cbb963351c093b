"""The tokens of one request as they come, and its completion at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from forerun.engine.requests import Completion, TokenEvent


class Stream:
    """An iterator of `TokenEvent`; `completion` is what has come of the request so far.

    Closing it, or dropping it, ends the request and frees its row.
    """

    def __init__(
        self, request_id: int, events: Iterator[TokenEvent], completion: Callable[[], Completion]
    ) -> None:
        self.request_id = request_id
        self._events, self._completion = events, completion

    def __iter__(self) -> Iterator[TokenEvent]:
        return self

    def __next__(self) -> TokenEvent:
        return next(self._events)

    @property
    def completion(self) -> Completion:
        return self._completion()

    def close(self) -> None:
        """End the request; what was generated stays in `completion`."""
        close = getattr(self._events, "close", None)
        if close is not None:
            close()
