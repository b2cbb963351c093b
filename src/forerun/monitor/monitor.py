"""The monitor: records rounds from any loop, and returns statistics and a decision."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from forerun.core import PlainReason
from forerun.errors import ConfigError
from forerun.measure.intervals import Estimate, ratio_of_means
from forerun.monitor.exposition import exposition
from forerun.monitor.snapshot import RecordedRound, RequestCounts, Snapshot, usable
from forerun.options import Text, check, plain

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.parts import TimedRound

MOST_ROUNDS, MOST_TOKENS = 1 << 20, 1 << 16
# Minimum evidence for a decision: rounds that drafted, and plain tokens of each request.
LEAST_ROUNDS, LEAST_PLAIN_TOKENS = 30, 8
# Half-width of the confidence interval in standard errors. The test is repeated every round, so its
# error rate must be about one in a thousand, not one in twenty.
WIDTH = 3.0


@dataclass(frozen=True)
class DisableAdvice:
    """A decision on speculation with its reason; true if speculation should stop."""

    disable: bool
    reason: str

    def __bool__(self) -> bool:
        return self.disable


class Monitor:
    """Monitors speculation in forerun's engine or any other loop, and says when it does not pay.

    Call `record_round` after each round, with times where they are known, and `record_plain` with the
    time of some plain decoding to compare with. Threads may share a monitor. Statistics are over the
    whole run, or over a window of the newest rounds.

    Args:
        window: number of newest rounds that decisions and the window's statistics are taken over.

    Raises:
        ConfigError: for a value out of range, here and in the methods that record numbers.
    """

    def __init__(self, window: int = 100) -> None:
        self.window: int = check("window", window, int, ge=LEAST_ROUNDS, le=MOST_ROUNDS)
        self._lock = Lock()
        self._run = Snapshot()
        self._newest: deque[RecordedRound] = deque(maxlen=self.window)
        # (seconds, tokens) of plain decoding by the requests in a round.
        self._plain: dict[int, deque[tuple[float, int]]] = {}

    def record_round(
        self,
        draft_tokens: int | Sequence[int],
        accepted_tokens: int | Sequence[int],
        *,
        emitted_tokens: int | Sequence[int] | None = None,
        draft_depth: int | Sequence[int] | None = None,
        draft_seconds: float | None = None,
        target_seconds: float | None = None,
        verify_seconds: float | None = None,
        seconds: float | None = None,
    ) -> None:
        """Record a round of one request, or of a batch with a number for each request.

        A round that drafted nothing is a plain round, and its time is what others are compared with.
        A round with a time that is NaN, infinite or negative (a clock that jumped) counts as untimed.

        Args:
            draft_tokens: proposed tokens; zero for a request that decoded plainly.
            accepted_tokens: proposed tokens that were emitted.
            emitted_tokens: all tokens that were emitted. Default: accepted tokens plus one.
            draft_depth: the longest path of a tree. Default: the draft is a chain.
            draft_seconds: time of drafting.
            target_seconds: time of the target's forward pass.
            verify_seconds: time of acceptance, including the forward pass if that was not timed apart.
            seconds: time of the whole round. Default: the sum of the stages.

        Raises:
            ConfigError: for impossible counts, such as more accepted than drafted tokens.
        """
        drafted = _counts("draft_tokens", draft_tokens)
        accepted = _counts("accepted_tokens", accepted_tokens)
        emitted = [count + 1 for count in accepted]
        if emitted_tokens is not None:
            emitted = _counts("emitted_tokens", emitted_tokens)
        depth = drafted if draft_depth is None else _counts("draft_depth", draft_depth)
        if not len(drafted) == len(accepted) == len(emitted) == len(depth) >= 1:
            raise ConfigError("the numbers of a round differ in length; give one for each request.")
        rows = list(map(_row, drafted, accepted, emitted, depth))
        draft = _time("draft_seconds", draft_seconds)
        target = _time("target_seconds", target_seconds)
        verify = _time("verify_seconds", verify_seconds)
        whole = _time("seconds", seconds)
        self._add(RecordedRound.of(rows, draft, target, verify, whole))

    def record_plain(self, seconds: float, tokens: int = 1, requests: int = 1) -> None:
        """Record a time of plain decoding to compare with; it does not count as a round.

        Args:
            seconds: time without prompts. NaN, infinite and negative times are ignored.
            tokens: decoded tokens of each request.
            requests: number of requests decoded at once; rounds of as many are compared with it.
        """
        number: float = check("seconds", seconds, float)
        length: int = check("tokens", tokens, int, ge=1)
        size: int = check("requests", requests, int, ge=1, le=MOST_TOKENS)
        if usable(number):
            with self._lock:
                self._note_plain(size, number, length * size)

    def watch(self, engine: Engine) -> None:
        """Record every round of an engine, with its times, until `engine.watch_rounds(None)`."""
        engine.watch_rounds(self._see)

    def should_disable(self) -> DisableAdvice:
        """Decide, with a reason, whether speculation should stop.

        It should where 30 or more of the newest rounds drafted and took longer than plain decoding of
        their tokens, by three standard errors.
        """
        with self._lock:
            return _advice(self._newest, _plain_estimates(self._plain))

    def snapshot(self, *, window: bool = False) -> Snapshot:
        """A copy of the sums and ratios of the run, or of the newest rounds."""
        with self._lock:
            seconds = {size: known.value for size, known in _plain_estimates(self._plain).items()}
            if not window:
                return self._run.copy(seconds)
            newest = Snapshot(plain_seconds=seconds)
            for done in self._newest:
                newest.add(done)
            return newest

    def as_dict(self) -> dict[str, Any]:
        """Statistics of run and window, and the decision, ready for JSON."""
        decision = self.should_disable()
        return {
            "run": self.snapshot().as_dict(),
            "window": self.snapshot(window=True).as_dict(),
            "should_disable": decision.disable,
            "reason": decision.reason,
        }

    def prometheus(
        self, *, prefix: str = "forerun", labels: Mapping[str, str] | None = None
    ) -> str:
        """All metrics in Prometheus' text format, under vLLM's names.

        Args:
            prefix: stands before each name, with a colon; with `vllm`, vLLM's dashboards show it.
            labels: labels of every sample, such as `{"model": "smollm2"}`.

        Raises:
            ConfigError: for names that Prometheus does not allow, and without `forerun[metrics]`.
        """
        given = check("labels", {} if labels is None else labels, dict[str, Text])
        decision, newest = self.should_disable(), self.snapshot(window=True)
        return exposition(self.snapshot(), newest, decision.disable, prefix, given)

    def _see(self, done: TimedRound) -> None:
        rows = [
            RequestCounts(
                len(draft), verdict.num_accepted, len(verdict.token_ids), draft.tree.depth, reason
            )
            for draft, verdict, reason in zip(done.drafts, done.verdicts, done.reasons, strict=True)
            if verdict.token_ids
        ]
        if rows:
            times = done.times
            self._add(RecordedRound.of(rows, times.draft, times.target, times.verify, times.total))

    def _add(self, done: RecordedRound) -> None:
        with self._lock:
            self._run.add(done)
            self._newest.append(done)
            stats = done.stats
            if done.seconds is not None and not stats.num_drafts and stats.num_emitted_tokens:
                self._note_plain(done.size, done.seconds, stats.num_emitted_tokens)

    def _note_plain(self, size: int, seconds: float, tokens: int) -> None:
        samples = self._plain.setdefault(size, deque(maxlen=self.window))
        samples.append((seconds, tokens))


def _counts(name: str, value: int | Sequence[int]) -> list[int]:
    if type(value) is int and 0 <= value <= MOST_TOKENS:
        return [value]
    given = plain(value)
    counts = given if isinstance(given, tuple) else (given,)
    return [check(name, count, int, ge=0, le=MOST_TOKENS) for count in counts]


def _time(name: str, value: float | None) -> float | None:
    if value is None or type(value) is float:
        return value
    seconds: float = check(name, value, float)
    return seconds


def _row(drafted: int, accepted: int, emitted: int, depth: int) -> RequestCounts:
    """The numbers of one request in one round.

    Raises:
        ConfigError: for numbers that contradict each other.
    """
    given = f"{drafted} drafted, {accepted} accepted, {emitted} emitted tokens, depth {depth}"
    if not accepted <= min(drafted, depth, emitted):
        raise ConfigError(f"{given}: accepted tokens are drafted on one path, and emitted.")
    if depth > drafted or bool(depth) != bool(drafted):
        raise ConfigError(f"{given}: a path has at least one token and at most all drafted ones.")
    return RequestCounts(drafted, accepted, emitted, depth, PlainReason.NOTHING_FOUND)


def _plain_estimates(samples: Mapping[int, Iterable[tuple[float, int]]]) -> dict[int, Estimate]:
    """Seconds per plain token by number of requests in a round, where enough tokens were timed.

    Args:
        samples: (seconds, tokens of all requests) by number of requests in a round.
    """
    made = {}
    for size, pairs in samples.items():
        seconds, tokens = zip(*pairs, strict=True)
        if sum(tokens) >= LEAST_PLAIN_TOKENS * size and sum(seconds) > 0.0:
            estimate = ratio_of_means(seconds, tokens)
            # The error of a single sample is unknown; the rounds' own spread then decides alone.
            made[size] = replace(estimate, standard_error=0.0) if len(tokens) == 1 else estimate
    return made


def _advice(rounds: Iterable[RecordedRound], plain: Mapping[int, Estimate]) -> DisableAdvice:
    """Decide whether these rounds took longer than plain decoding of their tokens, beyond chance.

    The test is on the sum of the seconds saved by round, not on a mean of ratios. A single round of an
    hour then widens the interval by more than it moves the sum, and decides nothing.
    """
    drafting = [done for done in rounds if done.stats.num_drafts]
    if len(drafting) < LEAST_ROUNDS:
        few = f"{len(drafting)} of the newest rounds drafted"
        return DisableAdvice(False, f"{few}; {LEAST_ROUNDS} are asked for before a decision.")
    timed = [done for done in drafting if done.seconds and done.size in plain]
    if len(timed) < LEAST_ROUNDS:
        reason = (
            "undecided: record the time of drafting rounds, and of plain ones of as many requests."
        )
        return DisableAdvice(False, reason)
    saved, tokens = [], defaultdict[int, int](int)
    for done in timed:
        emitted = done.stats.num_emitted_tokens
        tokens[done.size] += emitted
        saved.append(emitted * plain[done.size].value - done.stats.seconds)
    total, count = sum(saved), len(saved)
    variance = count * sum((seconds - total / count) ** 2 for seconds in saved) / (count - 1)
    variance += sum((number * plain[size].standard_error) ** 2 for size, number in tokens.items())
    margin = WIDTH * math.sqrt(variance)
    spent = sum(done.stats.seconds for done in timed)
    speed, most = 1.0 + total / spent, 1.0 + (total + margin) / spent
    measured = f"{speed:.2f} x plain decoding over {count} timed rounds"
    if total - margin > 0.0:
        return DisableAdvice(False, f"faster: {measured}.")
    if total + margin < 0.0:
        return DisableAdvice(True, f"slower: {measured}, at most {most:.2f} x allowing for chance.")
    return DisableAdvice(
        False, f"undecided: {measured}, and up to {most:.2f} x allowing for chance."
    )
