"""The engine's loop in a thread of its own, and the jobs that it works on."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from forerun.core import NO_HINTS, Hints
from forerun.engine.engine import Engine
from forerun.engine.parts import TimedRound
from forerun.engine.requests import Completion, TokenEvent
from forerun.server.errors import ApiError

T = TypeVar("T")


@dataclass(frozen=True)
class EngineRequest:
    """One request to the engine: what `Engine.add` takes.

    Args:
        prompt: token ids.
        params: sampling parameters by name; the model's own apply to the others.
        speculative: draft for it.
        hints: for the drafters; its namespace separates the requests of different keys.
        prompt_logprobs: alternatives of each prompt token to report; None reports nothing.
        marks: texts with which tool calls begin.
    """

    prompt: Sequence[int]
    params: Mapping[str, Any]
    speculative: bool = True
    hints: Hints = NO_HINTS
    prompt_logprobs: int | None = None
    marks: Sequence[str] = ()


@dataclass(slots=True)
class Update:
    """New tokens of one request of a job, from one round.

    Args:
        index: the request's place in the job.
        events: its new tokens.
        completion: its result, with the last update.
        predicted_seconds: time from its first round to its newest token.
        round_seconds: time of its round.
        forced: accepted tokens so far that its mask forced.
    """

    index: int
    events: Sequence[TokenEvent]
    completion: Completion | None = None
    predicted_seconds: float = 0.0
    round_seconds: float = 0.0
    forced: int = 0


@dataclass
class AnswerJob:
    """The requests that one body has made, and the queue of their updates.

    Args:
        requests: the engine requests.
        key: namespace of the client's key.
    """

    requests: Sequence[EngineRequest]
    key: str
    updates: asyncio.Queue[Update | Exception] = field(default_factory=asyncio.Queue)
    started: float = field(default_factory=perf_counter)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """Event loop in which the job is awaited."""
    left: int = 0
    """Requests whose last update has not come."""
    newest: dict[int, float] = field(default_factory=dict)
    """Time of the newest tokens of each request."""

    async def __aiter__(self) -> AsyncIterator[Update]:
        while self.left:
            update = await self.updates.get()
            if isinstance(update, Exception):
                raise update
            if update.completion is not None:
                self.left -= 1
                error = update.completion.error
                if error is not None:
                    raise ApiError.of(error)
            yield update


@dataclass
class _Running:
    """A request in the engine."""

    job: AnswerJob
    index: int
    first: float = 0.0
    """Time at which its first round began."""
    forced: int = 0
    """Accepted tokens that its mask forced."""


class EngineService:
    """Runs an engine for many clients.

    `submit` and the jobs belong to asyncio; everything that touches the engine runs in the service's
    thread, which takes new requests and cancellations between two rounds.

    Args:
        load: makes the engine; called in the thread, so that the server answers meanwhile.
        max_queue: requests that may wait for a row.
        max_per_key: requests of one key at once; None sets no limit.
    """

    def __init__(
        self, load: Callable[[], Engine], *, max_queue: int = 256, max_per_key: int | None = None
    ) -> None:
        self._load, self.max_queue, self.max_per_key = load, max_queue, max_per_key
        self.engine: Engine | None = None
        self.failure: BaseException | None = None
        self.draining = False
        self.on_loaded: Callable[[], None] = lambda: None
        self.on_update: Callable[[AnswerJob, Update], None] = lambda *_: None
        """Called for every update, in the event loop of its job."""
        self._open: Counter[str] = Counter()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: dict[int, _Running] = {}
        self._outbox: list[tuple[AnswerJob, Update | Exception]] = []
        self._round_seconds = 0.0
        # What the engine says goes to whoever listens where the service was made.
        run = partial(copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="engine", daemon=True)

    def start(self) -> None:
        """Load the engine and begin; does nothing if that was done."""
        if self._thread.ident is None:
            self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the engine loads or runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread; all jobs end with an error. May be called twice."""
        self.draining = True
        self._inbox.put(None)
        if self.alive:
            self._thread.join()

    async def ask(self, question: Callable[[Engine], T]) -> T:
        """The answer of the engine to a question that must not meet a round.

        Raises:
            ApiError: as `ready` does.
        """
        engine, answer = self.ready(), Future[T]()

        def settle() -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(question(engine))

        self._inbox.put(settle)
        return await asyncio.wrap_future(answer)

    @property
    def open(self) -> int:
        """Number of requests that wait or run."""
        return self._open.total()

    def ready(self) -> Engine:
        """The engine, once it is loaded.

        Raises:
            ApiError: while it loads, and once the server drains.
        """
        if self.engine is None:
            raise ApiError(503, "the model is loading; try again soon.")
        if self.draining:
            raise ApiError(503, "the server is shutting down.")
        return self.engine

    async def submit(self, requests: Sequence[EngineRequest], key: str = "") -> AnswerJob:
        """Queue requests; the job must be left with `end`.

        Raises:
            ApiError: if too many wait, or the engine refuses one of them; then none runs.
        """
        self.admit(len(requests), key)
        job = AnswerJob(requests, key, left=len(requests))
        accepted = Future[None]()
        self._open[key] += len(requests)
        self._inbox.put(lambda: self._take(job, accepted))
        try:
            await asyncio.wrap_future(accepted)
        except BaseException:
            self.end(job)
            raise
        return job

    def end(self, job: AnswerJob) -> None:
        """Cancel what still runs of a job and free its place in the queue."""
        if self._open[job.key]:
            self._open[job.key] -= len(job.requests)
        self._open += Counter()
        if job.left:
            self._inbox.put(lambda: self._cancel(job))

    def admit(self, count: int, key: str) -> None:
        """Refuse requests for which there is no room.

        Raises:
            ApiError: which asks the client to come back.
        """
        engine = self.ready()
        most = engine.max_batch_size + self.max_queue
        if count > most:
            raise ApiError(400, f"the request asks for {count} answers; at most {most} fit.")
        if self.open + count > most:
            raise ApiError(429, "the server is full; try again soon.", code="queue_full")
        if self.max_per_key is not None and self._open[key] + count > self.max_per_key:
            own, limit = self._open[key], self.max_per_key
            message = f"this key has {own} requests and may have {limit} at once."
            raise ApiError(429, message, code="rate_limit_exceeded")

    def _run(self) -> None:
        try:
            self.engine = self._load()
            # While the target runs, the event loop has the interpreter to itself.
            self.engine.watch_rounds(self._note_round, on_forward=self._flush)
        except BaseException as error:
            self.failure = error
            self.on_loaded()
            return
        self.on_loaded()
        try:
            while self._take_all(wait=not self.engine.has_work):
                if self.engine.has_work:
                    self._step(self.engine)
                if not self.engine.has_work:
                    self._flush()
        finally:
            # What has come meanwhile is taken and ends like the rest.
            self._take_all(wait=False)
            self._fail_all(ApiError(503, "the server was shut down."))
            self.engine.close()

    def _note_round(self, done: TimedRound) -> None:
        self._round_seconds = done.times.total
        for request, draft, verdict in zip(done.requests, done.drafts, done.verdicts, strict=True):
            if draft.forced and (running := self._running.get(request.request_id)):
                running.forced += verdict.num_accepted

    def _take_all(self, wait: bool) -> bool:
        """Do all that waits in the inbox; False if the service is to end."""
        while True:
            try:
                action = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            if action is None:
                return False
            action()
            wait = False

    def _take(self, job: AnswerJob, accepted: Future[None]) -> None:
        assert self.engine is not None
        if not accepted.set_running_or_notify_cancel():
            return
        try:
            for index, request in enumerate(job.requests):
                self._running[self.engine.add(**vars(request))] = _Running(job, index)
        except Exception as error:
            self._cancel(job)
            accepted.set_exception(ApiError.of(error))
            return
        accepted.set_result(None)

    def _cancel(self, job: AnswerJob) -> None:
        assert self.engine is not None
        for number in [n for n, running in self._running.items() if running.job is job]:
            self.engine.cancel(number)
            self._running.pop(number)
            self.engine.completion(number)

    def _step(self, engine: Engine) -> None:
        try:
            events = engine.step()
        except Exception as error:
            self._fail_all(ApiError.of(error, "a round failed, all requests end"))
            return
        now, took = perf_counter(), self._round_seconds
        by_request = defaultdict[int, list[TokenEvent]](list)
        for event in events:
            by_request[event.request_id].append(event)
        # Some end without a token, by an error.
        ended = engine.ended
        for number in dict.fromkeys([*by_request, *ended]):
            completion = engine.completion(number) if number in ended else None
            running = self._running.get(number)
            if running is None:
                continue
            if completion is not None:
                del self._running[number]
            running.first = running.first or now - took
            counts = now - running.first, took, running.forced
            update = Update(running.index, by_request[number], completion, *counts)
            self._outbox.append((running.job, update))

    def _fail_all(self, error: ApiError) -> None:
        """End all requests with an error."""
        for job in {id(running.job): running.job for running in self._running.values()}.values():
            self._cancel(job)
            self._outbox.append((job, error))
        self._flush()

    def _flush(self) -> None:
        """Hand all updates of a round to asyncio, in one call of each event loop."""
        updates, self._outbox = self._outbox, []
        for loop in dict.fromkeys(job.loop for job, _ in updates):
            own = [update for update in updates if update[0].loop is loop]
            # The event loop of clients that have gone may have ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._deliver, own)

    def _deliver(self, updates: Sequence[tuple[AnswerJob, Update | Exception]]) -> None:
        for job, update in updates:
            job.updates.put_nowait(update)
            if isinstance(update, Update):
                self.on_update(job, update)
