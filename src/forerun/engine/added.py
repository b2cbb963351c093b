"""Requests of `Engine.add`: they run in rounds that the caller starts, and each result is returned once."""

from __future__ import annotations

from forerun.engine.requests import Completion, Running, TokenEvent
from forerun.engine.scheduler import Scheduler
from forerun.engine.stream import first_started
from forerun.errors import ConfigError, shown


class Added:
    """Added requests, and the results already returned.

    Args:
        scheduler: runs the rounds.

    Attributes:
        running: requests whose completions have not been returned, by id.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.running: dict[int, Running] = {}
        # Requests whose last event has not been returned, and the number of returned events by request.
        self._open: dict[int, Running] = {}
        self._handed_out: dict[int, int] = {}

    def add(self, running: Running) -> int:
        """Queue a request and return its id."""
        number = running.request.request_id
        with self._scheduler.alone():
            self.running[number] = self._open[number] = running
            self._scheduler.waiting.append(running)
        return number

    def step(self) -> list[TokenEvent]:
        """Run one round and return the new tokens of all added requests."""
        self._scheduler.step()
        before = None
        try:
            with self._scheduler.alone():
                before = self._handed_out
                for number, count in before.items():
                    running = self._open.get(number)
                    if running and running.finished and count == running.num_output_tokens:
                        del self._open[number]
                started = first_started(self._open.values())
                counts = {row.request.request_id: row.num_output_tokens for row in started}
                events = [
                    event
                    for running in started
                    for event in running.events(before.get(running.request.request_id, 0))
                ]
                self._handed_out = counts
                return events
        except BaseException:
            # Interrupted before the events were returned, perhaps while the lock was released.
            if before is not None:
                self._handed_out = before
            raise

    def completion(self, request_id: int) -> Completion:
        """The result so far; the result of a request that has ended is returned once and then forgotten.

        Raises:
            ConfigError: for a request that is not known, or no longer.
        """
        if not isinstance(request_id, int) or request_id not in self.running:
            raise ConfigError(f"there is no request {shown(request_id)}; each is handed out once.")
        running = self.running[request_id]
        if running.finished:
            del self.running[request_id]
        return running.completion()

    @property
    def ended(self) -> list[int]:
        """Ids of requests that have ended and whose completions have not been returned."""
        return [number for number, running in self.running.items() if running.finished]
