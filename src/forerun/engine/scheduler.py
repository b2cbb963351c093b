"""Which requests have a row, how their prompts get into the cache, and whose turn it is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

from forerun.core import Batch, FinishReason, Stats
from forerun.engine.requests import Running
from forerun.engine.round import Parts, run_round, settle
from forerun.errors import ConfigError
from forerun.models.running import common_prefix

# Prompt tokens that are run at once while no stream waits.
LARGEST_CHUNK = 512
# And at least between two rounds, however long they take.
SMALLEST_CHUNK = 8
# Of a round's time that a chunk between two rounds may take: it is adjusted after the fact.
CHUNK_SHARE = 0.7


class Scheduler:
    """Admits requests to the rows of a cache and runs their prompts, a chunk at a time.

    A row keeps its tokens when its request has ended, until it is needed: admission takes the row that
    shares the longest prefix with the prompt and runs only the rest. While streams are running,
    prompts are run between rounds in chunks that take about as long as a round, so that no stream
    waits for more than two rounds' time.

    Everything that it knows follows from `rows` and `waiting`, so that `settle` can bring it in order
    after an interruption at any place.

    Args:
        parts: what rounds work with; the drafter sees the hidden layers of prompts that it declares.
        num_rows: requests that run at once.
        prefix_reuse: whether tokens of ended requests are used again.
    """

    def __init__(self, parts: Parts, num_rows: int, prefix_reuse: bool = True) -> None:
        self.parts, self.cache = parts, parts.cache
        # A row that has evicted tokens of one text lacks them for others.
        self.prefix_reuse = prefix_reuse and parts.evicts is None
        self.waiting: deque[Running] = deque()
        self.rows: list[Running | None] = [None] * num_rows
        self.past = Stats()
        """Counters of all requests that have ended."""
        self._held: list[list[int]] = [[] for _ in range(num_rows)]
        self._counted: Running | None = None
        self._in_order = True
        self._dropped: list[Running] = []
        self._lock, self._owner = threading.Lock(), 0
        self._round_seconds = 0.0
        self._least_recent = list(range(num_rows))
        self._chunk = SMALLEST_CHUNK

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or self.is_running

    @property
    def is_running(self) -> bool:
        return any(running is not None for running in self.rows)

    @property
    def admitted(self) -> list[Running]:
        """The requests with a row, prompts on their way included."""
        return [running for running in self.rows if running is not None]

    def admit(self) -> None:
        """Give rows to waiting requests, in the order in which they came."""
        while self.waiting and None in self.rows:
            running = self.waiting[0]
            row = self._best_row(running.request.token_ids)
            shared = self._shared(row, running.request.token_ids)
            self.cache.trim(row, shared)
            running.request.row = row
            running.stats.num_cached_tokens = shared
            self.rows[row] = running
            self.waiting.popleft()

    def ready(self, round_seconds: float) -> list[Running]:
        """The requests that take part in the next round: all of their tokens but the newest are in the
        cache. Prompts are run before, those first that were admitted first: as far as one round's time
        goes where streams wait for the next round, else to the end.

        Args:
            round_seconds: that the last round took.
        """
        joining = [running for running in self.admitted if running.in_rounds]
        left = [running for running in joining if self._missing(running)]
        if left:
            self._prefill(sorted(left, key=_order), round_seconds)
            # What failed with the last chunk of its prompt takes part in no round.
            joining = [r for r in joining if not r.finished and not self._missing(r)]
        return joining

    def _prefill(self, left: list[Running], round_seconds: float) -> None:
        for running in left:
            streaming = any(other.num_output_tokens for other in self.admitted)
            if streaming:
                seconds = self._run_chunk(running, self._chunk)
                # Longer by a quarter at most, and as much shorter as the last was too long.
                growth = min(CHUNK_SHARE * round_seconds / max(seconds, 1e-9), 1.25)
                self._chunk = min(max(int(growth * self._chunk), SMALLEST_CHUNK), LARGEST_CHUNK)
                return
            while self._missing(running) and not running.finished:
                self._run_chunk(running, LARGEST_CHUNK)

    def step(self) -> None:
        """Run one round over all that can run. Whatever stops it: requests, rows and the cache hold
        what is committed."""
        with self.alone():
            if not self._in_order:
                self.settle()
            self._in_order = False
            try:
                self.admit()
                ready = self.ready(self._round_seconds)
                if ready:
                    started = perf_counter()
                    run_round(self.parts, ready)
                    self._round_seconds = perf_counter() - started
                self._end_finished()
                self._in_order = True
            finally:
                if not self._in_order:
                    self.settle()

    def submit(self, requests: Iterable[Running]) -> None:
        """Queue requests."""
        with self.alone():
            self.waiting.extend(requests)

    def cancel(self, request_id: int) -> bool:
        """End a request that waits or runs and give back its row; False if it has ended already."""
        with self.alone():
            known = (*self.waiting, *self.admitted)
            running = next((r for r in known if r.request.request_id == request_id), None)
            if running is not None:
                running.finish(FinishReason.CANCELLED)
                self.settle()
        return running is not None

    def drop(self, requests: Iterable[Running]) -> None:
        """The same for requests that are not followed any more. In the middle of a round, where a stream
        may be garbage-collected, they end with it."""
        self._dropped.extend(requests)
        if not self._is_inside:
            with self.alone():
                self.settle()

    @property
    def _is_inside(self) -> bool:
        """Whether this thread runs what `alone` protects."""
        return self._owner == threading.get_ident() and self._lock.locked()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the rounds of other threads.

        Raises:
            ConfigError: for a hook or a drafter that calls the engine in which it runs, and where its
                cache is in other use.
        """
        if self._is_inside:
            raise ConfigError(
                "the engine is in the middle of a round, or its cache is in use: what it calls, and what "
                "uses its cache, cannot call it; do that afterwards."
            )
        with self._lock:
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = 0

    def settle(self) -> None:
        """Bring rows, requests and the cache to what is committed, and give back the rows of requests
        that have ended. It may be called at any time, and again where it was interrupted."""
        self._end_dropped()
        admitted = self.admitted
        left = [other for other in self.waiting if other in admitted or other.finished]
        for running in left:
            self.waiting.remove(running)
        for occupant in admitted:
            settle(self.cache, occupant)
        self._end_finished()
        self._in_order = True

    def take_row(self, running: Running) -> None:
        """Give a row to a request that takes no part in the rounds.

        Raises:
            ConfigError: where all rows are taken.
        """
        if None not in self.rows:
            raise ConfigError("all rows are taken; finish or cancel a request first.")
        row = self._best_row([])
        self.cache.trim(row, 0)
        running.request.row, running.in_rounds = row, False
        self.rows[row] = running

    def forget(self) -> None:
        """Empty all rows, the drafter's too; none is taken."""
        for row in range(len(self.rows)):
            self._empty(row)

    def kept(self, token_ids: list[int] | None) -> tuple[int, list[int]]:
        """A row of an ended request and the tokens that it holds: of the one that shares the longest prefix
        with a text, and no more than that; without a text, of the last one that ended.

        Raises:
            ConfigError: where no row holds any.
        """
        ended = [
            row for row in self._least_recent if self.rows[row] is None and self._shared_by(row)
        ]
        if not ended:
            raise ConfigError(
                "no request has ended whose tokens the cache holds; generate with the text first."
            )
        row = ended[-1]
        if token_ids is not None:
            row = max(ended, key=lambda other: self._shared_by(other, token_ids))
        shared = self._shared_by(row, token_ids)
        if not shared:
            raise ConfigError("the cache holds no text that begins like this one; generate first.")
        return row, self._held[row][:shared]

    def fill_row(self, token_ids: list[int], write: Callable[[int], None]) -> None:
        """Have `write` put a text into a free row, as if a request had ended with it.

        Raises:
            ConfigError: where all rows are taken.
        """
        if None not in self.rows:
            raise ConfigError("all rows are taken; finish or cancel a request first.")
        row = self._best_row(token_ids)
        self._empty(row)
        try:
            write(row)
        except BaseException:
            self.cache.trim(row, 0)
            raise
        self._held[row] = token_ids
        self._used(row)

    def _shared_by(self, row: int, token_ids: list[int] | None = None) -> int:
        """How many tokens of a text a row holds; of any if None."""
        held = self._held[row][: self.cache.length(row)]
        return len(held) if token_ids is None else common_prefix(held, token_ids)

    def _empty(self, row: int) -> None:
        """Forget what a row holds, the drafter's too."""
        self._held[row] = []
        self.cache.trim(row, 0)
        if self.parts.drafter is not None:
            self.parts.drafter.clear_row(row)

    def _used(self, row: int) -> None:
        """Note that a row was the last in use."""
        self._least_recent = [other for other in self._least_recent if other != row] + [row]

    def _missing(self, running: Running) -> int:
        """Tokens that the target has to run before the request can take part in a round."""
        request = running.request
        return len(request) - 1 - self.cache.length(request.row)

    def _run_chunk(self, running: Running, num_tokens: int) -> float:
        """Run the next tokens of a prompt; the seconds that it took."""
        request, started = running.request, perf_counter()
        start = self.cache.length(request.row)
        stop = min(len(request) - 1, start + num_tokens)
        try:
            self._run(running, start, stop)
        except Exception as error:
            running.finish(FinishReason.ERROR, error)
        seconds = perf_counter() - started
        running.stats.prefill_seconds += seconds
        return seconds

    def _run(self, running: Running, start: int, stop: int) -> None:
        """Run the tokens of a prompt from `start` to `stop`, without making logits."""
        request, guarded = running.request, self.parts.guarded
        layers = () if guarded is None else guarded.drafter.hidden_layers
        if self.parts.evicts is not None:
            self.parts.evicts.commit(request.row)
        batch = Batch.after(
            self.cache,
            [request.row],
            [request.token_ids[start:stop]],
            hidden_layers=layers,
            logits_for="none",
        )
        output = self.parts.target.forward(batch, self.cache)
        if guarded is not None and layers:
            guarded.observe_prefill(running, start, output)

    def _best_row(self, token_ids: list[int]) -> int:
        """The free row that shares most with these tokens; of equals the one idle for longest."""
        free = [row for row in self._least_recent if self.rows[row] is None]
        return max(free, key=lambda row: self._shared(row, token_ids))

    def _shared(self, row: int, token_ids: list[int]) -> int:
        """How many tokens of a prompt a free row holds; its last running always has to be run."""
        # An interruption may have left less than is written down.
        most = min(self.cache.length(row), len(token_ids) - 1)
        return min(common_prefix(self._held[row], token_ids), most)

    def _end_dropped(self) -> None:
        dropped = list(self._dropped)
        for running in dropped:
            if not running.finished:
                running.finish(FinishReason.CANCELLED)
        # Another thread may have added to them.
        del self._dropped[: len(dropped)]

    def _end_finished(self) -> None:
        """Give back the rows of requests that have ended.

        Raises:
            Exception: of a policy that cannot release a request, when its row is free.
        """
        if self._dropped:
            self._end_dropped()
        for row, running in enumerate(self.rows):
            if running is not None and running.finished:
                self._end(row, running)

    def _end(self, row: int, running: Running) -> None:
        """Give back the row of a request that has ended; each step may be taken twice."""
        failure: Exception | None = None
        if self.parts.guarded is not None:
            self.parts.guarded.release(running)
        if self.parts.policy is not None:
            try:
                self.parts.policy.release(running.request)
            except Exception as error:
                failure = error
        if self._counted is not running:
            self.past, self._counted = Stats.total([self.past, running.stats]), running
        # No drafter has seen the hidden states of the plain loop.
        if self.prefix_reuse and running.in_rounds:
            self._held[row] = running.request.token_ids[: self.cache.length(row)]
        else:
            self._empty(row)
        self._used(row)
        self.rows[row] = None
        if failure is not None:
            raise failure


def _order(running: Running) -> int:
    return running.request.request_id
