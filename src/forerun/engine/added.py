"""Requests of `Engine.add`, which run in the rounds that the caller asks for: each is handed out once."""

from __future__ import annotations

from forerun.engine.requests import Completion, Running, TokenEvent
from forerun.engine.scheduler import Scheduler
from forerun.engine.stream import first_started
from forerun.errors import ConfigError, shown


class Added:
    """What was added, and what was handed out of it.

    Args:
        scheduler: runs the rounds.

    Attributes:
        running: those whose completions were not handed out, by id.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.running: dict[int, Running] = {}
        # Those of them whose last event has not been handed out, and events handed out by request.
        self._open: dict[int, Running] = {}
        self._handed_out: dict[int, int] = {}

    def add(self, running: Running) -> int:
        """Queue a request; its id."""
        number = running.request.request_id
        with self._scheduler.alone():
            self.running[number] = self._open[number] = running
            self._scheduler.waiting.append(running)
        return number

    def step(self) -> list[TokenEvent]:
        """Run one round; the new tokens of all of these requests."""
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
            # Interrupted before the caller has them, perhaps while the lock was given back.
            if before is not None:
                self._handed_out = before
            raise

    def completion(self, request_id: int) -> Completion:
        """The result so far; one that has ended is forgotten.

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
        """Requests that have ended and whose completions are not handed out."""
        return [number for number, running in self.running.items() if running.finished]
