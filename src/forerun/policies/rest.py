"""Rounds in which policy `auto` decides nothing, because nothing was found to pay."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core import Request


class Rest:
    """A number of plain rounds of a batch.

    Attributes:
        size: of the batch that rests; 0 while none does.
        seconds: of the rounds that are over.
    """

    def __init__(self) -> None:
        self.size, self.seconds, self._left = 0, list[float](), 0
        self._ids: frozenset[int] = frozenset()

    def begin(self, requests: Sequence[Request], rounds: int) -> None:
        """Rest for so many rounds, the one that is being planned among them."""
        if rounds > 1:
            self.size, self._left = len(requests), rounds - 1
            self._ids = frozenset(request.request_id for request in requests)

    def goes_on(self, requests: Sequence[Request]) -> bool:
        """Whether the next round is one of rest: a request that comes ends it."""
        if (
            self._left
            and len(requests) == self.size
            and all(request.request_id in self._ids for request in requests)
        ):
            self._left -= 1
            return True
        self._left = 0
        return False

    def end(self) -> tuple[int, list[float]]:
        """The batch size and seconds of the rounds that are over, which are forgotten."""
        size, seconds = self.size, self.seconds
        self.size, self.seconds, self._left = 0, [], 0
        return size, seconds
