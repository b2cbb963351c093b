"""The monitor: rounds go in from any loop, figures and a decision come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from forerun.core import PlainReason
from forerun.errors import ConfigError
from forerun.monitor.evidence import LEAST_ROUNDS, Decision, decide, plain_estimates
from forerun.monitor.exposition import exposition
from forerun.monitor.snapshot import Round, Row, Snapshot, usable
from forerun.options import Text, check, plain

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.round import TimedRound

MOST_ROUNDS, MOST_TOKENS = 1 << 20, 1 << 16


class Monitor:
    """Watches speculation in forerun's engine or in any other loop, and says when it does not pay.

    Call `record_round` after each round, with times where they are known, and `record_plain` with the
    time of some plain decoding to compare with. Threads may share a monitor. Figures are those of the
    run, or of the window with the newest rounds.

    Args:
        window: rounds that decisions and the newest figures are taken over.
        break_even: the share of the *tested* tokens that must be accepted for drafts to pay, where it is
            known; it then decides alone. None decides by the measured times, and without them by the
            literature's 0.30.

    Raises:
        ConfigError: for a value out of range, here and wherever numbers are recorded.
    """

    def __init__(self, window: int = 100, break_even: float | None = None) -> None:
        self.window: int = check("window", window, int, ge=LEAST_ROUNDS, le=MOST_ROUNDS)
        self.break_even: float | None = check(
            "break_even", break_even, float | None, ge=0.0, le=1.0
        )
        self._lock = Lock()
        self._run = Snapshot()
        self._newest: deque[Round] = deque(maxlen=self.window)
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
        """Count one round: of one request, or of a batch with a number for each request.

        A round that drafted nothing is a plain one, and its time what others are compared with. A time
        that is NaN, infinite or negative (a clock that jumped) is a gap: the round counts, as untimed.

        Args:
            draft_tokens: proposed; zero for a request that decoded plainly.
            accepted_tokens: of them, how many were emitted.
            emitted_tokens: all that were emitted; one more than accepted where it is left out.
            draft_depth: the longest path of a tree; left out, the draft is a chain.
            draft_seconds: that drafting took.
            target_seconds: that the target's forward pass took.
            verify_seconds: that acceptance took; with the forward pass, where that was not timed apart.
            seconds: that the whole round took; left out, the sum of the stages.

        Raises:
            ConfigError: for counts that cannot be, such as more accepted than drafted tokens.
        """
        drafted = _counts("draft_tokens", draft_tokens)
        accepted = _counts("accepted_tokens", accepted_tokens)
        emitted = [count + 1 for count in accepted]
        if emitted_tokens is not None:
            emitted = _counts("emitted_tokens", emitted_tokens)
        depth = drafted if draft_depth is None else _counts("draft_depth", draft_depth)
        if not len(drafted) == len(accepted) == len(emitted) == len(depth) >= 1:
            raise ConfigError("the numbers of a round differ in length; give one for each request.")
        found = PlainReason.NOTHING_FOUND
        rows = tuple(map(_row, drafted, accepted, emitted, depth, [found] * len(drafted)))
        draft = _time("draft_seconds", draft_seconds)
        target = _time("target_seconds", target_seconds)
        verify = _time("verify_seconds", verify_seconds)
        whole = _time("seconds", seconds)
        self._add(Round.of(rows, draft, target, verify, whole))

    def record_plain(self, seconds: float, tokens: int = 1, requests: int = 1) -> None:
        """Note the time of plain decoding, to compare with; it is no round of the run.

        Args:
            seconds: that it took, prompts apart. NaN, infinite and negative ones are ignored.
            tokens: of each request.
            requests: that were decoded at once; rounds of as many are compared with it.
        """
        number: float = check("seconds", seconds, float)
        length: int = check("tokens", tokens, int, ge=1)
        size: int = check("requests", requests, int, ge=1, le=MOST_TOKENS)
        if usable(number):
            with self._lock:
                self._note_plain(size, number, length * size)

    def watch(self, engine: Engine) -> None:
        """Record every round of an engine from now on, with its times; `engine.watch_times(None)`
        ends that."""
        engine.watch_times(self._see)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens of the run; None where nothing was drafted."""
        with self._lock:
            return self._run.stats.acceptance_rate

    @property
    def tokens_per_round(self) -> float | None:
        """Emitted tokens a round of the run, plain ones included; None before the first."""
        with self._lock:
            return self._run.stats.tokens_per_target_forward

    def should_disable(self) -> Decision:
        """Whether speculation should stop, and why. It is asked for evidence first: 30 rounds that
        drafted, and a difference of three standard errors.

        By time where plain decoding was timed: the newest rounds took longer than their tokens would
        have taken plainly. Otherwise by the share of the tested tokens that was accepted.
        """
        with self._lock:
            return decide(self._newest, plain_estimates(self._plain), self.break_even)

    def snapshot(self, *, window: bool = False) -> Snapshot:
        """The sums and ratios of the run, or of the newest rounds: a copy."""
        with self._lock:
            seconds = {size: known.value for size, known in plain_estimates(self._plain).items()}
            if window:
                return Snapshot.of(self._newest, seconds)
            return self._run.copy(seconds)

    def log_line(self) -> str:
        """The newest rounds on one line; seconds are those of a round."""
        return self.snapshot(window=True).line()

    def as_dict(self) -> dict[str, Any]:
        """Run, window and decision, ready for JSON."""
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
        """The text that a Prometheus server scrapes, in the names that vLLM has.

        Args:
            prefix: stands before each name and a colon; with `vllm`, vLLM's dashboards show it.
            labels: of every sample, such as `{"model": "smollm2"}`.

        Raises:
            ConfigError: for names that Prometheus does not allow.
        """
        given = check("labels", {} if labels is None else labels, dict[str, Text])
        decision, newest = self.should_disable(), self.snapshot(window=True)
        return exposition(self.snapshot(), newest, decision.disable, prefix, given)

    def _see(self, done: TimedRound) -> None:
        rows = tuple(
            Row(len(draft), verdict.num_accepted, len(verdict.token_ids), draft.tree.depth, reason)
            for draft, verdict, reason in zip(done.drafts, done.verdicts, done.reasons, strict=True)
            if verdict.token_ids
        )
        if rows:
            draft, target, verify = done.times.draft, done.times.target, done.times.verify
            self._add(Round.of(rows, draft, target, verify, done.times.total))

    def _add(self, done: Round) -> None:
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


def _row(drafted: int, accepted: int, emitted: int, depth: int, reason: PlainReason) -> Row:
    """One request's numbers.

    Raises:
        ConfigError: where they contradict each other.
    """
    given = f"{drafted} drafted, {accepted} accepted, {emitted} emitted tokens, depth {depth}"
    if not accepted <= min(drafted, depth, emitted):
        raise ConfigError(f"{given}: accepted tokens are drafted on one path, and emitted.")
    if depth > drafted or bool(depth) != bool(drafted):
        raise ConfigError(f"{given}: a path has at least one token and at most all drafted ones.")
    return Row(drafted, accepted, emitted, depth, reason)
