"""Ways to follow requests: streams, lists of completions, and requests of rounds that the caller starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from time import perf_counter

from forerun.contracts import Cache, CausalLM, Eviction
from forerun.core import Batch, Origin, PlainReason, Verdict
from forerun.engine.requests import Completion, Running, TokenEvent, TokenLogprob, token_logprobs
from forerun.engine.scheduler import Scheduler
from forerun.errors import ConfigError, shown
from forerun.models.running import prefill_chunks
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw_plain, log_probs, warp


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
        reason = running.committed.finish_reason
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
                if running.committed.error is not None:
                    raise running.committed.error
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
    if running.committed.error is not None:
        raise running.committed.error


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


class Added:
    """Requests of `Engine.add`, and the results of theirs that were already returned.

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


def decode_plain(
    target: CausalLM,
    cache: Cache,
    running: Running,
    randomness: Randomness,
    eviction: Eviction,
) -> Iterator[TokenEvent]:
    """Decode one request token by token: the oracle of the tests and the baseline of every comparison.

    It shares the model, the cache and the sampler with the rounds and nothing else: no draft, no
    verification.

    Args:
        target: the model.
        cache: its cache.
        running: the request, with the tokens generated so far.
        randomness: source of random numbers.
        eviction: the cache's.
    """
    request = running.request
    started = perf_counter()
    for _ in prefill_chunks(target, cache, [request.row], [request.token_ids[:-1]]):
        eviction.commit(request.row)
    running.stats.prefill_seconds += perf_counter() - started
    while not running.finished:
        started = perf_counter()
        eviction.evict(request.row)
        token, logprobs = _next_token(target, cache, running, randomness)
        running.commit(running.outcome(Verdict((), (token,), (Origin.PLAIN,))), logprobs)
        running.stats.count_plain(PlainReason.ASKED)
        running.stats.num_emitted_tokens += 1
        running.stats.seconds += perf_counter() - started
        yield from running.events(running.num_output_tokens - 1)


def _next_token(
    target: CausalLM, cache: Cache, running: Running, randomness: Randomness
) -> tuple[int, list[TokenLogprob]]:
    """The token after a request's newest one, and its log probability if it is wanted."""
    request, params = running.request, running.request.params
    batch = Batch.after(cache, [request.row], [request.token_ids[-1:]], logits_for="last")
    logits = target.forward(batch, cache).logits
    assert logits is not None
    prefix = Prefix(request)
    probs = warp(logits[:, 0], [prefix])
    token = draw_plain(probs, prefix, randomness)
    if params.logprobs is None:
        return token, []
    values = log_probs(logits[:, 0], probs, params.logprobs_mode)
    return token, token_logprobs(values, (token,), params.logprobs)
