"""The monitor: records rounds from any loop, and returns statistics and a decision."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from forerun.core import PlainReason
from forerun.errors import ConfigError
from forerun.monitor.evidence import LEAST_ROUNDS, DisableAdvice, disable_advice, plain_estimates
from forerun.monitor.exposition import exposition
from forerun.monitor.snapshot import RequestCounts, RoundCounts, Snapshot, usable
from forerun.options import Text, check, plain

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.parts import TimedRound

MOST_ROUNDS, MOST_TOKENS = 1 << 20, 1 << 16


class Monitor:
    """Monitors speculation in forerun's engine or any other loop, and says when it does not pay.

    Call `record_round` after each round, with times where they are known, and `record_plain` with the
    time of some plain decoding to compare with. Threads may share a monitor. Statistics are over the
    whole run, or over a window of the newest rounds.

    Args:
        window: number of newest rounds that decisions and the window's statistics are taken over.
        break_even: share of the *tested* tokens that must be accepted for drafts to pay. If given, it
            alone decides. None decides by the measured times, and without them by the literature's
            0.30.

    Raises:
        ConfigError: for a value out of range, here and in the methods that record numbers.
    """

    def __init__(self, window: int = 100, break_even: float | None = None) -> None:
        self.window: int = check("window", window, int, ge=LEAST_ROUNDS, le=MOST_ROUNDS)
        self.break_even: float | None = check(
            "break_even", break_even, float | None, ge=0.0, le=1.0
        )
        self._lock = Lock()
        self._run = Snapshot()
        self._newest: deque[RoundCounts] = deque(maxlen=self.window)
        # (seconds, tokens) of plain decoding by the requests in a round.
        self._plain: dict[int, deque[tuple[float, int]]] = {}

    def __repr__(self) -> str:
        return f"<Monitor: {self.log_line()}>"

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
        reasons = [PlainReason.NOTHING_FOUND] * len(drafted)
        rows = tuple(map(_row, drafted, accepted, emitted, depth, reasons))
        draft = _time("draft_seconds", draft_seconds)
        target = _time("target_seconds", target_seconds)
        verify = _time("verify_seconds", verify_seconds)
        whole = _time("seconds", seconds)
        self._add(RoundCounts.of(rows, draft, target, verify, whole))

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

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens of the run; None if nothing was drafted."""
        with self._lock:
            return self._run.stats.acceptance_rate

    @property
    def tokens_per_round(self) -> float | None:
        """Emitted tokens per round of the run, plain rounds included; None before the first round."""
        with self._lock:
            return self._run.stats.tokens_per_target_forward

    def should_disable(self) -> DisableAdvice:
        """Decide, with a reason, whether speculation should stop.

        A decision to stop needs 30 rounds that drafted, and a difference of three standard errors.
        Where plain decoding was timed and no `break_even` is given, the newest rounds must have taken
        longer than plain decoding of their tokens. Otherwise too small a share of the tested tokens
        must have been accepted.
        """
        with self._lock:
            return disable_advice(self._newest, plain_estimates(self._plain), self.break_even)

    def snapshot(self, *, window: bool = False) -> Snapshot:
        """A copy of the sums and ratios of the run, or of the newest rounds."""
        with self._lock:
            seconds = {size: known.value for size, known in plain_estimates(self._plain).items()}
            if window:
                return Snapshot.of(self._newest, seconds)
            return self._run.copy(seconds)

    def log_line(self) -> str:
        """Statistics of the newest rounds on one line; times are per round."""
        return self.snapshot(window=True).line()

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
        rows = tuple(
            RequestCounts(
                len(draft), verdict.num_accepted, len(verdict.token_ids), draft.tree.depth, reason
            )
            for draft, verdict, reason in zip(done.drafts, done.verdicts, done.reasons, strict=True)
            if verdict.token_ids
        )
        if rows:
            draft, target, verify = done.times.draft, done.times.target, done.times.verify
            self._add(RoundCounts.of(rows, draft, target, verify, done.times.total))

    def _add(self, done: RoundCounts) -> None:
        with self._lock:
            self._run.add(done)
            self._newest.append(done)
            if done.seconds is not None and not done.drafted and done.emitted:
                self._note_plain(len(done.rows), done.seconds, done.emitted)

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


def _row(
    drafted: int, accepted: int, emitted: int, depth: int, reason: PlainReason
) -> RequestCounts:
    """The numbers of one request in one round.

    Raises:
        ConfigError: for numbers that contradict each other.
    """
    given = f"{drafted} drafted, {accepted} accepted, {emitted} emitted tokens, depth {depth}"
    if not accepted <= min(drafted, depth, emitted):
        raise ConfigError(f"{given}: accepted tokens are drafted on one path, and emitted.")
    if depth > drafted or bool(depth) != bool(drafted):
        raise ConfigError(f"{given}: a path has at least one token and at most all drafted ones.")
    return RequestCounts(drafted, accepted, emitted, depth, reason)
