"""Costs of the next round: a table of forwards, corrected by observed rounds."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import add
from statistics import median_low
from typing import Any

from forerun.costs.table import CostTable

ASSUMED = CostTable.from_rows(
    (n, b, 0, 1.0 + 0.04 * (n * b - 1)) for n in (1, 2, 16) for b in (1, 2, 64)
)
"""Costs before anything was measured, in forwards of one token; later rounds show how long one takes."""
# Step with which a plain round corrects the expected time, and the machine's speed's part of it; the rest
# is the batch size's. MOST limits the factor of one round.
PLAIN_STEP, OF_SPEED, MOST = 0.25, 0.4, 1.25
# Rounds with drafts differ from the table by an entry that each of them costs, in plain rounds (a draft
# displaces the target's weights from the processor's caches), and in the factor of its rise. Here are the
# standard deviations of both, for a measured and for an assumed table, their growth per round (DRIFT), and
# that of one round's time (NOISE).
MEASURED_SPREAD, ASSUMED_SPREAD, DRIFT = (0.06, 0.5), (0.06, 3.0), (0.005, 0.03)
NOISE = 0.15
# LEAST: share of a plain round that a token of each request adds at least by the table. FLATTEST: the least
# factor of the rise. LEAST_ENTRY: how far noise may take the entry below zero. SURPRISING: deviations are cut
# at so many standard deviations. REHEARSED: rounds that a rehearsed one counts as.
LEAST, FLATTEST, LEAST_ENTRY, SURPRISING, REHEARSED = 0.02, 0.3, 0.1, 2.0, 4
# DRAFT_MEMORY: factor by which the weight of a draft's time shrinks with each later draft. GUESSED, MEASURED:
# drafts that a guess and a measurement count as. COLD: drafts of a process that run cold. LASTING: part of
# the first assumption's weight that stays.
DRAFT_MEMORY, GUESSED, MEASURED, COLD, LASTING = 0.95, 1.0, 4.0, 2, 0.8
# How much longer a cold draft may be taken to last than a warm one: beyond it something else ran.
MOST_CHILLED = 2.0
# Seconds per token that no draft takes.
LONGEST_SECONDS = 1e4
# The median of the last STEADY times of a kind counts, relative to the expected ones, because interruptions
# of one round say nothing of the next.
STEADY = 5
# The first plain rounds after drafts run cold. SETTLED: plain rounds after which they do not. CHILLS: such
# stretches that are timed before a single cold round is corrected instead, and from one stretch to the next.
SETTLED, CHILLS, CHILL_STEP = 2, 8, 0.1
# Assumed cost of a token drafted by a model, and of a lookup, in plain rounds, before one was timed.
MODEL_TOKEN, LOOKUP = 0.25, 0.01
# PREFILL: assumed cost of a prompt's token in drafted tokens. MUCH: pending tokens up to which no prompt is
# timed. PROMPT: tokens of a prompt that counts as much as all before it.
PREFILL, MUCH, PROMPT = 0.1, 8, 64


class DraftTimes:
    """Seconds of drafts of one drafter at one batch size: a line fitted to the timed drafts.

    Args:
        token_seconds, fixed_seconds: assumption at the start.
        weight: rounds that the assumption counts as.
        computed: the assumption follows from the bytes that a draft reads and is not a guess.
    """

    def __init__(
        self,
        token_seconds: float,
        fixed_seconds: float,
        weight: float = GUESSED,
        computed: bool = False,
    ) -> None:
        self.computed, self.timed = computed, 0
        self.fixed, self.per_token = fixed_seconds, token_seconds
        # Sums of weights, tokens, seconds, tokens² and tokens · seconds, for drafts of one and four tokens.
        # The assumption keeps some weight, because drafts of one length say nothing of others.
        one, four = fixed_seconds + token_seconds, fixed_seconds + 4 * token_seconds
        sums = (2.0, 5.0, one + four, 17.0, one + 4 * four)
        self._assumed = [LASTING / 2 * value for value in sums]
        self._sums = [(weight - LASTING) / 2 * value for value in sums]

    def observe(self, tokens: float, seconds: float, drafts: int = 1) -> None:
        """Take in `drafts` drafts of `tokens` tokens, of `seconds` each."""
        self.timed += drafts
        seen = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        kept = DRAFT_MEMORY**drafts
        self._sums = [kept * old + drafts * new for old, new in zip(self._sums, seen, strict=True)]
        weight, x, y, xx, xy = map(add, self._sums, self._assumed)
        slope = (weight * xy - x * y) / (weight * xx - x * x)
        self.per_token = min(max(slope, 0.0), y / x)
        self.fixed = max((y - self.per_token * x) / weight, 0.0)

    @property
    def first(self) -> float:
        """Seconds of a draft of one token."""
        return self.fixed + self.per_token

    def scaled(self, scale: float) -> DraftTimes:
        """The times in another unit."""
        return DraftTimes(scale * self.per_token, scale * self.fixed)

    def __call__(self, tokens: float) -> float:
        return self.fixed + self.per_token * tokens


class Curve:
    """Seconds of a round without its draft, at one batch size, by the number of drafted tokens in it.

    The table gives the shape of its rise. Observed rounds correct the factor of the rise, which long
    texts or verification may change, and the entry, by a Kalman filter.

    Args:
        table: times of forwards.
        batch_size: number of requests.
        most: most drafted tokens per request.
        slope: factor of the rise.

    Attributes:
        entry: seconds of any draft, in the table's seconds.
    """

    def __init__(self, table: CostTable, batch_size: int, most: int, slope: float = 1.0) -> None:
        base = [
            table.seconds(1.0 + extra / batch_size, batch_size)
            for extra in range(batch_size * most + 1)
        ]
        self.batch_size, self.plain, self.base, self.slope = batch_size, base[0], base[0], slope
        least = LEAST * self.plain / batch_size
        # Measurements are noisy, but more tokens never cost less.
        self.rises = [
            max(value - base[0], least * extra) for extra, value in enumerate(accumulate(base, max))
        ]
        # For each point, the least rise of any later token.
        steps = [later - sooner for sooner, later in pairwise(self.rises)]
        self.floors = [*accumulate(reversed([*steps, steps[-1]]), min)][::-1]
        self.entry = 0.0
        # Variances of entry and slope, and their covariance.
        self._most = [x**2 for x in (ASSUMED_SPREAD if table is ASSUMED else MEASURED_SPREAD)]
        self._variances, self._covariance = self._most, 0.0

    @property
    def last_slope(self) -> float:
        """Seconds of one more token among many, as in a prompt, in the table's seconds."""
        last = len(self.rises) - 1
        return (self.rises[last] - self.rises[last // 2]) / (last - last // 2)

    def at(self, extra: float) -> float:
        """Seconds with `extra` drafted tokens in all, in the table's seconds."""
        return self.plain + self.added(extra)

    def added(self, extra: float) -> float:
        """Seconds that `extra` drafted tokens add."""
        return min(extra, 1.0) * self.entry + self.slope * self.rise(extra)

    def correct(self, extra: float, seconds: float) -> None:
        """Learn from a round with `extra` drafted tokens of `seconds`, in the table's seconds."""
        drafts, rise = min(extra, 1.0), self.rise(extra) / self.plain
        expected, both = self.at(extra) / self.plain, self._covariance
        entry, slope = (
            min(variance + drift**2, most)
            for variance, drift, most in zip(self._variances, DRIFT, self._most, strict=True)
        )
        of_entry, of_slope = entry * drafts + both * rise, both * drafts + slope * rise
        whole = of_entry * drafts + of_slope * rise + (NOISE * expected) ** 2
        most = SURPRISING * math.sqrt(whole)
        error = min(max(seconds / self.plain - expected, -most), most)
        least = -LEAST_ENTRY * self.plain
        self.entry = max(self.entry + self.plain * of_entry * error / whole, least)
        self.slope = max(self.slope + of_slope * error / whole, FLATTEST)
        self._variances = [entry - of_entry**2 / whole, slope - of_slope**2 / whole]
        self._covariance = both - of_entry * of_slope / whole

    def rise(self, extra: float) -> float:
        """Seconds that drafted tokens add by the table; beyond its last point as between the last two."""
        rises = self.rises
        place = min(int(extra), len(rises) - 2)
        return rises[place] + (extra - place) * (rises[place + 1] - rises[place])


class LiveCosts:
    """Costs of rounds and drafts in seconds, corrected by observation.

    Args:
        table: times of the target's forwards.
        most: most drafted tokens per request.
    """

    def __init__(self, table: CostTable | None = None, most: int = 16) -> None:
        self.table, self._most = table or ASSUMED, most
        self.speed, self.is_known = 1.0, table is not None
        # Time of the first plain round after drafts, in settled ones, and the times that it was measured.
        self._chill, self._chills, self._timings = 1.0, 0, 0
        self._curves: dict[int, Curve] = {}
        self._drafts: dict[tuple[str, int], DraftTimes] = {}
        self._prefill: dict[str, float] = {}
        # The last times of rounds without drafts, of rounds with some, and of each drafter's drafts, as
        # shares of the expected ones.
        self._last = defaultdict[object, deque[float]](lambda: deque(maxlen=STEADY))
        # Draft times by drafter, measured before the first request.
        self._at_first: dict[str, tuple[float, float]] = {}
        # The machine's speed then, and the factor of the table's rise.
        self._first_speed = self._first_slope = 1.0

    def forget(self) -> None:
        """Start afresh from what was measured before the first request."""
        self.speed, self.is_known = self._first_speed, self.table is not ASSUMED
        self._chill, self._chills, self._timings = 1.0, 0, 0
        for learned in (self._curves, self._drafts, self._prefill, self._last):
            learned.clear()
        for name, times in self._at_first.items():
            self.measured(name, *times)

    def found(self, rounds: Mapping[int, float]) -> None:
        """Take in times of rounds of one request that were measured before the first request.

        Args:
            rounds: seconds by drafted tokens, including plain rounds (0).
        """
        base = Curve(self.table, 1, self._most)
        self.speed = self._first_speed = rounds[0] / base.plain
        for extra, seconds in [*rounds.items()] * REHEARSED:
            base.correct(extra, seconds / self.speed)
        self._first_slope = base.slope
        self._curves.clear()

    def forget_drafts(self) -> None:
        """Forget the times of drafts."""
        self._drafts.clear()
        self._prefill.clear()
        self._at_first.clear()

    def knows(self, name: str) -> bool:
        """True if a drafter's times were measured."""
        return (name, 1) in self._drafts

    def curve(self, batch_size: int) -> Curve:
        """The curve of a batch size; its values times `speed` are seconds."""
        if batch_size not in self._curves:
            self._curves[batch_size] = Curve(self.table, batch_size, self._most, self._first_slope)
        return self._curves[batch_size]

    def plain_seconds(self, batch_size: int) -> float:
        """Seconds of a round without drafts."""
        return self.curve(batch_size).plain * self.speed

    def draft(
        self, name: str, looks_up: bool, batch_size: int, scale: float | None = None
    ) -> DraftTimes:
        """Times of a drafter's drafts.

        With a scale they are `scaled`; they are stored as multiples of it.
        """
        key = (name, batch_size)
        if scale is not None:
            times = self._drafts.get(key)
            if times is None or not times.computed:
                times = self._drafts[key] = DraftTimes(1.0, 0.0, MEASURED, computed=True)
            return times.scaled(scale)
        if key not in self._drafts:
            plain, weight = self.plain_seconds(1), GUESSED
            token, fixed = (0.0, LOOKUP) if looks_up else (MODEL_TOKEN, 0.0)
            timed = [(b, self._drafts[name, b]) for n, b in self._drafts if n == name]
            if timed:
                # Taken from the nearest batch size, because a model's weights are read once for a batch.
                _, nearest = min(timed, key=lambda entry: abs(entry[0] - batch_size))
                token, fixed, plain, weight = nearest.per_token, nearest.fixed, 1.0, MEASURED
            self._drafts[key] = DraftTimes(token * plain, fixed * plain, weight)
        return self._drafts[key]

    def token_share(self, name: str, looks_up: bool, share: float | None) -> float:
        """Plain rounds that a drafted token takes; `share` is the drafter's own statement."""
        times = self.draft(name, looks_up, 1)
        return times(1) * (share or 0.0) if times.computed else times(1) / self.plain_seconds(1)

    def prefill_seconds(self, name: str, pending: int) -> float:
        """Seconds of the `pending` tokens that a model or head must run before it drafts."""
        if pending < 2:
            return 0.0
        return pending * self._prefill_token(name)

    def _prefill_token(self, name: str) -> float:
        """Seconds of a token of a prompt in a model or head that drafts."""
        return self._prefill.get(name, PREFILL * self.draft(name, False, 1).per_token)

    def rounds_to_time(self) -> int:
        """Number of plain rounds to run in a row, to time one after drafts; counts the timings."""
        self._timings += 1
        known = self._chills >= CHILLS and self._timings % CHILLS
        return 1 if known else SETTLED + 1

    def settled(self, seconds: Sequence[float]) -> Sequence[float]:
        """Seconds of plain rounds that do not run cold, from plain rounds right after drafts."""
        if len(seconds) <= SETTLED:
            return [one / self._chill for one in seconds]
        usual = median_low(seconds[SETTLED:])
        if 0.0 < usual < LONGEST_SECONDS:
            self._chills += 1
            # A geometric mean: the arithmetic mean of ratios of noisy times is too large.
            ratio = min(max(seconds[0] / usual, 0.5), 2.0) / self._chill
            self._chill *= ratio ** max(CHILL_STEP, 1.0 / (1 + self._chills))
        return seconds[SETTLED:]

    def observe(self, batch_size: int, extra: float, seconds: float, rounds: int = 1) -> None:
        """Take in rounds with `extra` drafted tokens and the seconds of one round without its draft."""
        # The clock may have jumped.
        if not 0.0 < seconds < LONGEST_SECONDS:
            return
        curve = self.curve(batch_size)
        expected = curve.at(extra) * self.speed
        if not self.is_known:
            self.speed, self.is_known = self.speed * seconds / expected, True
            return
        # Relative to the table, which no round changes: what is late must not be corrected twice.
        base = curve.base + curve.rise(extra)
        usual = self._usual((batch_size, extra > 0), seconds / base) * base
        if extra:
            # Such a round tells of the cost of drafted tokens, not of the machine's speed.
            for _ in range(rounds):
                curve.correct(extra, usual / self.speed)
        else:
            # The machine's speed applies to all batch sizes, but the table may be wrong for one of them.
            ratio = min(max(usual / expected, 1.0 / MOST), MOST)
            step = 1.0 - (1.0 - PLAIN_STEP) ** rounds
            curve.plain *= ratio ** (step * (1.0 - OF_SPEED))
            self.speed *= ratio ** (step * OF_SPEED)

    def _usual(self, kind: object, ratio: float) -> float:
        """Add a measured time over its expectation; return the median of the last ones of its kind."""
        self._last[kind].append(ratio)
        return median_low(self._last[kind])

    def observe_draft(
        self,
        name: str,
        looks_up: bool,
        batch_size: int,
        depth: float,
        pending: int,
        seconds: Sequence[float],
        cold: bool = False,
    ) -> tuple[float, float]:
        """Take in the times of drafts and return the seconds of all drafts and of the prompt run before them.

        Both are the expected times, once these were learned from.

        Args:
            name, looks_up: the drafter.
            batch_size: number of requests.
            depth: depth of the drafts.
            pending: tokens that had to be run before the first draft.
            seconds: time of each draft.
            cold: the drafts ran cold.
        """
        times = self.draft(name, looks_up, batch_size)
        expected = times(depth)
        if pending <= MUCH or looks_up:
            least = max(expected, LOOKUP * self.plain_seconds(batch_size))
            usual, is_cold = median_low(seconds) / least, cold or times.timed < COLD
            usual = self._usual((name, batch_size, is_cold), usual)
            # A cold draft is no reason to think later ones slower.
            known = min(usual, 1.0) if is_cold else usual
            times.observe(depth, known * least, len(seconds))
            return len(seconds) * times(depth) * (min(usual, MOST_CHILLED) if is_cold else 1.0), 0.0
        expected *= len(seconds)
        # A short prompt tells little of a token's time, because its first draft runs cold. A prompt's token
        # never takes longer than one alone: what does is an interruption.
        share, known = max(sum(seconds) - expected, 0.0) / pending, self._prefill_token(name)
        share = min(share, times.first)
        self._prefill[name] = known + pending / (pending + PROMPT) * (share - known)
        return expected, pending * self._prefill[name]

    def measured(self, name: str, token_seconds: float, fixed_seconds: float) -> None:
        """Take in the times of drafts that were measured before the first request."""
        self._at_first[name] = token_seconds, fixed_seconds
        self._drafts[name, 1] = DraftTimes(token_seconds, fixed_seconds, MEASURED)

    def as_dict(self) -> dict[str, Any]:
        """Learned seconds of drafts, ready for JSON; computed ones are left out."""
        return {
            name: [times.per_token, times.fixed, self._prefill.get(name)]
            for (name, batch_size), times in self._drafts.items()
            if batch_size == 1
            and not times.computed
            and (times.timed > COLD or name in self._at_first)
        }

    def restore(self, values: Any) -> None:
        """Start from the seconds that `as_dict` returned."""
        for name, (token, fixed, prefill) in dict(values).items():
            numbers = [float(value) for value in (token, fixed, prefill or 0.0)]
            if not all(0.0 <= value < LONGEST_SECONDS for value in numbers):
                raise ValueError(f"seconds of {name}")
            self.measured(str(name), *numbers[:2])
            if prefill is not None:
                self._prefill[str(name)] = numbers[2]
