"""Scheduling: rows for requests, their prompts' prefill, and the requests of each round."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

from forerun.core import Batch, FinishReason, Stats
from forerun.engine.parts import Parts
from forerun.engine.requests import Running, token_logprobs
from forerun.engine.round import run_round, settle
from forerun.errors import ConfigError
from forerun.models.running import common_prefix

# Prompt tokens that are run at once while no stream waits.
LARGEST_CHUNK = 512
# Prompt tokens that are run at least between two rounds, however long they take.
SMALLEST_CHUNK = 16
# Share of a round's time that prompts between two rounds may take, up to CROWDED times as much where more
# requests wait than run, because a batch that fills late is slow for all. The number of tokens is adjusted
# afterwards.
CHUNK_SHARE, CROWDED = 0.7, 2.0
# Times in succession that shorter prompts go before the oldest one, so that they cannot hold it up for good.
MOST_OVERTAKEN = 3


class Scheduler:
    """Admits requests to the rows of a cache and runs their prompts, a chunk at a time.

    After its request has ended, a row keeps its tokens until it is needed: admission takes the row
    where fewest tokens have to be run, now or when the text that it loses goes on. Only requests of
    the same namespace share a prefix. While streams are running, prompts are run between rounds in
    chunks that take about as long as a round, so that streams wait for about two rounds' time, and for three
    where more requests wait than run.

    Its whole state follows from `rows` and `waiting`, so that `settle` can restore it after an
    interruption at any point.

    Args:
        parts: parts that rounds work with; the drafter sees the hidden layers of prompts that it
            declares.
        num_rows: number of requests that run at once.
        prefix_reuse: use tokens of ended requests again.
    """

    def __init__(self, parts: Parts, num_rows: int, prefix_reuse: bool = True) -> None:
        self.parts, self.cache = parts, parts.cache
        # A row that has evicted tokens of one text lacks them for other texts.
        self.prefix_reuse = prefix_reuse and not parts.evicts
        self.waiting: deque[Running] = deque()
        self.rows: list[Running | None] = [None] * num_rows
        self.past = Stats()
        """Counters of all requests that have ended."""
        self._held: list[list[int]] = [[] for _ in range(num_rows)]
        self._namespaces = [""] * num_rows
        self._counted: Running | None = None
        self._in_order = True
        self._dropped: list[Running] = []
        self._lock, self._owner = threading.Lock(), 0
        self._round_seconds = 0.0
        self._least_recent = list(range(num_rows))
        self._chunk, self._overtaken = SMALLEST_CHUNK, 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or self.is_running

    @property
    def is_running(self) -> bool:
        return any(running is not None for running in self.rows)

    @property
    def admitted(self) -> list[Running]:
        """Requests with a row, including those whose prompt is still being run."""
        return [running for running in self.rows if running is not None]

    def admit(self) -> None:
        """Give rows to waiting requests, in the order of their arrival."""
        while self.waiting and None in self.rows:
            running = self.waiting[0]
            request, scored = running.request, running.num_prompt_logprobs is not None
            row = self._best_row(request.token_ids, request.hints.namespace)
            if self._namespaces[row] != request.hints.namespace:
                self._empty(row)
                self._namespaces[row] = request.hints.namespace
            # A prompt whose log probabilities are wanted is run from its start.
            shared = 0 if scored else self._shared(row, request.token_ids)
            self.cache.trim(row, shared)
            running.request.row = row
            running.stats.num_cached_tokens = shared
            self.rows[row] = running
            self.waiting.popleft()

    def ready(self, round_seconds: float) -> list[Running]:
        """Run prompts and return the requests of the next round: all their tokens but the newest are cached.

        Short prompts are run first: for one or two rounds' time if streams wait for the next round,
        otherwise `LARGEST_CHUNK` tokens of them.

        Args:
            round_seconds: time of the last round.
        """
        joining = [running for running in self.admitted if running.in_rounds]
        left = [running for running in joining if self._missing(running)]
        if left:
            self._prefill(left, round_seconds)
            # A request that failed with the last chunk of its prompt takes part in no round.
            joining = [r for r in joining if not r.finished and not self._missing(r)]
        return joining

    def _prefill(self, left: list[Running], round_seconds: float) -> None:
        left = sorted(left, key=_prompt_length)
        oldest = min(left, key=lambda running: running.request.request_id)
        if self._overtaken == MOST_OVERTAKEN:
            left = [oldest, *(running for running in left if running is not oldest)]
        self._overtaken = 0 if left[0] is oldest else self._overtaken + 1
        streams = sum(bool(other.num_output_tokens) for other in self.admitted)
        if not streams:
            self._run_chunks(left, LARGEST_CHUNK, deadline=math.inf)
            return
        crowd = min(max(len(left) / streams, 1.0), CROWDED)
        allowed, started = CHUNK_SHARE * crowd * round_seconds, perf_counter()
        if self._run_chunks(left, self._chunk, started + allowed) == self._chunk:
            # At most twice as many as last time, but as many fewer as those took too long.
            growth = min(allowed / max(perf_counter() - started, 1e-9), 2.0)
            self._chunk = min(max(int(growth * self._chunk), SMALLEST_CHUNK), LARGEST_CHUNK)

    def _run_chunks(self, left: list[Running], most: int, deadline: float) -> int:
        """Run the next tokens of prompts, one after the other, and return their number.

        Args:
            left: prompts; at least one gets on.
            most: most tokens.
            deadline: time after which no further prompt is begun.
        """
        num_tokens = 0
        for running in left:
            if num_tokens < most and (not num_tokens or perf_counter() < deadline):
                count = min(self._missing(running), most - num_tokens)
                self._run_chunk(running, count)
                num_tokens += count
        return num_tokens

    def step(self) -> None:
        """Run one round over all requests that can run.

        Whatever interrupts it, requests, rows and the cache hold the committed state.
        """
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
        """Put requests at the end of the queue."""
        with self.alone():
            self.waiting.extend(requests)

    def cancel(self, request_id: int) -> bool:
        """End a waiting or running request and free its row; return False if it has already ended."""
        with self.alone():
            known = (*self.waiting, *self.admitted)
            running = next((r for r in known if r.request.request_id == request_id), None)
            if running is not None:
                running.finish(FinishReason.CANCELLED)
                self.settle()
        return running is not None

    def drop(self, requests: Iterable[Running]) -> None:
        """End requests that are no longer followed.

        In the middle of a round, where a stream may be garbage-collected, they end with the round.
        """
        self._dropped.extend(requests)
        if not self._is_inside:
            with self.alone():
                self.settle()

    @property
    def _is_inside(self) -> bool:
        """True if this thread runs a block that `alone` protects."""
        return self._owner == threading.get_ident() and self._lock.locked()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the rounds of other threads and keep them out of the block.

        Raises:
            ConfigError: for a hook or a drafter that calls the engine in which it runs, and while
                its cache is in other use.
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
        """Restore rows, requests and the cache to the committed state, and free the rows of ended requests.

        It may be called at any time, and again if it was interrupted.
        """
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
            ConfigError: if all rows are taken.
        """
        row = self._best_row([])
        self.cache.trim(row, 0)
        running.request.row, running.in_rounds = row, False
        self.rows[row] = running

    def forget(self) -> None:
        """Empty all rows, also in the drafter; no row may be taken."""
        for row in range(len(self.rows)):
            self._empty(row)

    def last_text(self) -> tuple[int, list[int]]:
        """The row of the request that ended last, and the tokens that it holds.

        Raises:
            ConfigError: if no row holds any.
        """
        for row in reversed(self._least_recent):
            held = self._held[row][: self.cache.length(row)]
            if held and self.rows[row] is None:
                return row, held
        raise ConfigError(
            "no request has ended whose tokens the cache holds; generate with the text first."
        )

    def fill_row(self, token_ids: list[int], write: Callable[[int], None]) -> None:
        """Let `write` put a text into a free row, as if a request had ended with it.

        Raises:
            ConfigError: if all rows are taken.
        """
        row = self._best_row(token_ids)
        self._empty(row)
        try:
            write(row)
        except BaseException:
            self.cache.trim(row, 0)
            raise
        self._held[row], self._namespaces[row] = token_ids, ""
        self._used(row)

    def _empty(self, row: int) -> None:
        """Forget the tokens that a row holds, also in the drafter."""
        self._held[row] = []
        self.cache.trim(row, 0)
        self.parts.drafter.clear_row(row)

    def _used(self, row: int) -> None:
        """Mark a row as the last one in use."""
        self._least_recent = [other for other in self._least_recent if other != row] + [row]

    def _missing(self, running: Running) -> int:
        """Number of tokens that the target must run before the request can take part in a round."""
        request = running.request
        return len(request) - 1 - self.cache.length(request.row)

    def _run_chunk(self, running: Running, num_tokens: int) -> None:
        """Run the next tokens of a prompt."""
        request, started = running.request, perf_counter()
        start = self.cache.length(request.row)
        try:
            self._run(running, start, start + num_tokens)
        except Exception as error:
            running.finish(FinishReason.ERROR, error)
        running.stats.prefill_seconds += perf_counter() - started

    def _run(self, running: Running, start: int, stop: int) -> None:
        """Run the tokens of a prompt from `start` to `stop`, with logits only if they are wanted."""
        request, layers = running.request, self.parts.drafter.hidden_layers
        count = running.num_prompt_logprobs
        self.parts.eviction.commit(request.row)
        batch = Batch.after(
            self.cache,
            [request.row],
            [request.token_ids[start:stop]],
            hidden_layers=layers,
            logits_for="none" if count is None else "all",
        )
        output = self.parts.forward(batch)
        if count is not None and output.logits is not None:
            rows = output.logits[0].log_softmax(-1)
            following = request.token_ids[start + 1 : stop + 1]
            running.prompt_logprobs[start:] = token_logprobs(rows, following, count)
        if layers:
            self.parts.guarded.observe_prefill(running, start, output)

    def _best_row(self, token_ids: list[int], namespace: str = "") -> int:
        """The free row where a prompt costs fewest tokens; among equals the one idle for longest.

        Tokens that the row loses count by the chance that their text goes on: a half for the row in
        use last, less for others. So a short request beside a conversation does not take its row.

        Raises:
            ConfigError: if all rows are taken.
        """
        free = [row for row in self._least_recent if self.rows[row] is None]
        if not free:
            raise ConfigError("all rows are taken; finish or cancel a request first.")

        def cost(row: int) -> float:
            same = self._namespaces[row] == namespace
            shared = self._shared(row, token_ids) if same else 0
            lost = min(self.cache.length(row), len(self._held[row])) - shared
            return len(token_ids) - shared + lost * (free.index(row) + 1) / (2 * len(free))

        return min(free, key=cost)

    def _shared(self, row: int, token_ids: list[int]) -> int:
        """Number of tokens of a prompt that a free row holds; the last token always has to be run."""
        # After an interruption the cache may hold fewer tokens than are recorded.
        most = min(self.cache.length(row), len(token_ids) - 1)
        return min(common_prefix(self._held[row], token_ids), most)

    def _end_dropped(self) -> None:
        dropped = list(self._dropped)
        for running in dropped:
            if not running.finished:
                running.finish(FinishReason.CANCELLED)
        # Another thread may have added requests meanwhile.
        del self._dropped[: len(dropped)]

    def _end_finished(self) -> None:
        """Free the rows of requests that have ended.

        Raises:
            Exception: of a policy that cannot release a request; its row is free by then.
        """
        if self._dropped:
            self._end_dropped()
        for row, running in enumerate(self.rows):
            if running is not None and running.finished:
                self._end(row, running)

    def _end(self, row: int, running: Running) -> None:
        """Free the row of a request that has ended; each step may be repeated."""
        failure: Exception | None = None
        self.parts.guarded.release(running)
        try:
            self.parts.policy.release(running.request)
        except Exception as error:
            failure = error
        if self._counted is not running:
            self.past, self._counted = Stats.total([self.past, running.stats]), running
        # After the plain loop the row is not reused: no drafter has seen its hidden states.
        if self.prefix_reuse and running.in_rounds:
            self._held[row] = running.request.token_ids[: self.cache.length(row)]
        else:
            self._empty(row)
        self._used(row)
        self.rows[row] = None
        if failure is not None:
            raise failure


def _prompt_length(running: Running) -> int:
    """Number of tokens that had to be run when the prompt got its row."""
    return len(running.request) - running.stats.num_cached_tokens
