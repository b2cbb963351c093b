"""What the next round would cost: a table of forwards, corrected by the rounds that are seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import Any

from forerun.core import CostTable

ASSUMED = CostTable.from_rows(
    (n, b, 0, 1.0 + 0.04 * (n * b - 1)) for n in (1, 2, 16) for b in (1, 2, 64)
)
"""Before anything was measured: in forwards of one token. That of later rounds says how long one is."""
# How quickly plain rounds of one batch size correct what was thought of them, and of the machine's speed, and
# how quickly others correct the latter. Of one round no more is believed than a factor of MOST.
LEVEL_STEP, PLAIN_STEP, SPEED_STEP, MOST = 0.15, 0.1, 0.01, 1.25
# Standard deviations of the two numbers by which rounds differ from the table, the factor of its rise and
# what a token takes beside it, in plain rounds: at first, of a table that was measured and of one that is
# assumed; and what a round adds to them. And that of a round, as a share of itself.
MEASURED_SPREAD, ASSUMED_SPREAD, DRIFT, NOISE = (0.3, 0.05), (3.0, 0.5), (0.02, 0.004), 0.15
# The least of that factor; standard deviations beyond which a round says no more; and single rounds that one
# rehearsed before the first request counts as.
FLATTEST, SURPRISING, REHEARSED = 0.3, 2.0, 4
# What is left of the weight of a draft's time a draft later; drafts that a guess of it counts as, and a
# measurement; drafts of a process that run cold.
DRAFT_MEMORY, GUESSED, MEASURED, COLD, LASTING = 0.95, 1.0, 4.0, 2, 0.8
# No draft takes so many seconds a token.
LONGEST_SECONDS = 1e4
# Points beyond a curve's last one that are as good as all of them.
FAR = 1e6
# A draft that takes longer than this times what was expected was interrupted by something else.
OUTLIER = 3.0
# What a drafted token costs in plain rounds before one was timed: of a model and looked up.
MODEL_TOKEN, LOOKUP = 0.25, 0.01
# A token of a prompt, in drafted ones, before such a prompt was timed; and how many are timed as one.
PREFILL, MUCH = 0.1, 8


class DraftTimes:
    """Seconds of drafts of one drafter at one batch size: a line through those that were timed.

    The first drafts of a process run cold: those that take longer than is assumed teach nothing.

    Args:
        token_seconds, fixed_seconds: assumed at first.
        weight: rounds that this counts as.
        computed: whether it follows from what a draft reads, and is no guess.
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
        # Of weights, tokens, seconds, tokens² and tokens · seconds: drafts of one and of four tokens. What is
        # assumed keeps some weight, as drafts of one length say nothing of others.
        one, four = fixed_seconds + token_seconds, fixed_seconds + 4 * token_seconds
        sums = (2.0, 5.0, one + four, 17.0, one + 4 * four)
        self._assumed = [LASTING / 2 * value for value in sums]
        self._sums = [(weight - LASTING) / 2 * value for value in sums]

    def observe(self, tokens: float, seconds: float, cold: bool = False, drafts: int = 1) -> None:
        """Take in drafts, as deep as this, and the seconds of one."""
        self.timed += drafts
        if (cold or self.timed <= COLD) and seconds > self(tokens):
            return
        seen = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        kept = DRAFT_MEMORY**drafts
        self._sums = [kept * old + drafts * new for old, new in zip(self._sums, seen, strict=True)]
        weight, x, y, xx, xy = map(add, self._sums, self._assumed)
        slope = (weight * xy - x * y) / (weight * xx - x * x)
        self.per_token = min(max(slope, 0.0), y / x)
        self.fixed = max((y - self.per_token * x) / weight, 0.0)

    @property
    def first(self) -> float:
        """Of the first token."""
        return self.fixed + self.per_token

    def scaled(self, scale: float) -> DraftTimes:
        """The same in other units."""
        return DraftTimes(scale * self.per_token, scale * self.fixed)

    def __call__(self, tokens: float) -> float:
        return self.fixed + self.per_token * tokens


class Curve:
    """Seconds of a round but for its draft, at one batch size, by the tokens drafted in it.

    The table says how they rise. What is seen says how steeply, and what each token takes beside that: with a
    long text, say, or where verification takes its time too. Both are estimated by a Kalman filter.

    Args:
        table: of forwards.
        batch_size: requests.
        most: tokens drafted a request at most.
        is_measured: whether the table was.
    """

    def __init__(
        self, table: CostTable, batch_size: int, most: int, is_measured: bool = True
    ) -> None:
        base = [
            table.seconds(1.0 + extra / batch_size, batch_size)
            for extra in range(batch_size * most + 1)
        ]
        # More tokens never cost less, whatever noise there was.
        self.batch_size, self.plain = batch_size, base[0]
        self.rises = [value - base[0] for value in accumulate(base, max)]
        self.floors = least_slopes(self.rises)
        # The factor of the rises, and seconds a drafted token beside them.
        self.slope, self.token = 1.0, 0.0
        spread = MEASURED_SPREAD if is_measured else ASSUMED_SPREAD
        self._most = [deviation**2 for deviation in spread]
        self._variances, self._covariance = self._most, 0.0

    @property
    def last_slope(self) -> float:
        """Of a token more where there are many, as in a prompt, in the table's seconds."""
        last = len(self.rises) - 1
        return (self.rises[last] - self.rises[last // 2]) / (last - last // 2)

    def at(self, extra: float) -> float:
        """With so many drafted tokens in all, in the table's seconds."""
        return self.plain + self.added(extra)

    def added(self, extra: float) -> float:
        """What so many drafted tokens add."""
        return self.slope * self.rise(extra) + self.token * extra

    def correct(self, extra: float, seconds: float, rounds: int = 1) -> None:
        """Note that rounds with so many drafted tokens took these of the table's seconds on average."""
        # In plain rounds, and tokens of each request.
        rise, each = self.rise(extra) / self.plain, extra / self.batch_size
        (first, second), both = self._variances, self._covariance
        # Rounds of one length tell only of both together: without a bound the rest would be forgotten.
        first = min(first + rounds * DRIFT[0] ** 2, self._most[0])
        second = min(second + rounds * DRIFT[1] ** 2, self._most[1])
        of_rise, of_each = first * rise + both * each, both * rise + second * each
        noise = (NOISE * self.at(extra) / self.plain) ** 2 / rounds
        whole = of_rise * rise + of_each * each + noise
        most = SURPRISING * math.sqrt(whole)
        error = min(max((seconds - self.at(extra)) / self.plain, -most), most) / whole
        self.slope = max(self.slope + of_rise * error, FLATTEST)
        token = self.token + of_each * error * self.plain / self.batch_size
        self.token = max(token, 0.0)
        self._variances = [first - of_rise**2 / whole, second - of_each**2 / whole]
        self._covariance = both - of_rise * of_each / whole

    def rise(self, extra: float) -> float:
        """What drafted tokens add, by the table; beyond its last one as between the last two."""
        rises = self.rises
        place = min(int(extra), len(rises) - 2)
        return rises[place] + (extra - place) * (rises[place + 1] - rises[place])


def _step(step: float, rounds: int) -> float:
    """The step of several rounds that each make one."""
    return 1.0 - (1.0 - step) ** rounds


def least_slopes(rises: Sequence[float]) -> list[float]:
    """By point, the least that each further token costs on average, however many are added; beyond the
    last point as between the last two."""
    last = len(rises) - 1
    far = rises[last] + FAR * (rises[last] - rises[last - 1])
    # The lower convex hull of the points to the right, nearest last.
    hull, slopes = [(last + FAR, far)], [0.0] * len(rises)
    for place in range(last, -1, -1):
        while len(hull) > 1 and _slope(place, rises[place], *hull[-1]) >= _slope(
            place, rises[place], *hull[-2]
        ):
            hull.pop()
        slopes[place] = _slope(place, rises[place], *hull[-1])
        hull.append((place, rises[place]))
    return slopes


def _slope(x: float, y: float, further_x: float, further_y: float) -> float:
    return (further_y - y) / (further_x - x)


class LiveCosts:
    """Seconds of rounds by their drafts.

    Args:
        table: of forwards of the target.
        most: tokens drafted a request at most.
    """

    def __init__(self, table: CostTable | None = None, most: int = 16) -> None:
        self.table, self._most = table or ASSUMED, most
        self.speed, self.is_known = 1.0, table is not None
        self._curves: dict[int, Curve] = {}
        self._drafts: dict[tuple[str, int], DraftTimes] = {}
        self._prefill: dict[str, float] = {}
        # By name, what drafts were measured to take before the first request, and the machine's speed then.
        self._at_first: dict[str, tuple[float, float]] = {}
        self._first_speed = 1.0
        # Of a curve, its factor and plain rounds a token of each request.
        self._first_rise = 1.0, 0.0

    def as_measured(self) -> LiveCosts:
        """The same with nothing learned since what was measured before the first request."""
        costs = LiveCosts(None if self.table is ASSUMED else self.table, self._most)
        for name, (token, fixed) in self._at_first.items():
            costs.measured(name, token, fixed)
        costs.speed = costs._first_speed = self._first_speed
        costs._first_rise = self._first_rise
        return costs

    def found(self, rounds: Mapping[int, float]) -> None:
        """Take in what rounds of one request were measured to take before the first request.

        Args:
            rounds: seconds by drafted tokens, plain rounds among them.
        """
        base = Curve(self.table, 1, self._most)
        self.speed = self._first_speed = rounds[0] / base.plain
        for extra, seconds in [*rounds.items()] * REHEARSED:
            base.correct(extra, seconds / self.speed)
        self._first_rise = base.slope, base.token / base.plain
        self._curves.clear()

    def forget_drafts(self) -> None:
        """Forget what drafts take."""
        self._drafts.clear()
        self._prefill.clear()
        self._at_first.clear()

    def knows(self, name: str) -> bool:
        """Whether a drafter's times were measured."""
        return (name, 1) in self._drafts

    def curve(self, batch_size: int) -> Curve:
        """The curve of a batch size; times `speed` it is in seconds."""
        if batch_size not in self._curves:
            curve = Curve(self.table, batch_size, self._most, self.table is not ASSUMED)
            curve.slope, share = self._first_rise
            curve.token = share * curve.plain / batch_size
            self._curves[batch_size] = curve
        return self._curves[batch_size]

    def plain_seconds(self, batch_size: int) -> float:
        """Of a round without drafts."""
        return self.curve(batch_size).plain * self.speed

    def draft(
        self, name: str, looks_up: bool, batch_size: int, scale: float | None = None
    ) -> DraftTimes:
        """The times of a drafter's drafts; `scaled`, where a scale is given, and kept over it."""
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
                # As for the nearest batch size; a model's tokens are read once for all of it.
                _, nearest = min(timed, key=lambda entry: abs(entry[0] - batch_size))
                token, fixed, plain, weight = nearest.per_token, nearest.fixed, 1.0, MEASURED
            self._drafts[key] = DraftTimes(token * plain, fixed * plain, weight)
        return self._drafts[key]

    def token_share(self, name: str, looks_up: bool, share: float | None) -> float:
        """Plain rounds that a drafted token takes; `share` is what a drafter says of itself."""
        times = self.draft(name, looks_up, 1)
        return times(1) * (share or 0.0) if times.computed else times(1) / self.plain_seconds(1)

    def prefill_seconds(self, name: str, pending: int) -> float:
        """Of what a model or head has to run before it drafts."""
        if pending < 2:
            return 0.0
        token = self._prefill.get(name, PREFILL * self.draft(name, False, 1).per_token)
        return pending * token

    def observe(self, batch_size: int, extra: float, seconds: float, rounds: int = 1) -> None:
        """Learn from rounds with so many drafted tokens each, and the seconds of one without its draft."""
        # A clock may have jumped.
        if not 0.0 < seconds < LONGEST_SECONDS:
            return
        curve = self.curve(batch_size)
        expected = curve.at(extra) * self.speed
        if not self.is_known:
            self.speed, self.is_known = self.speed * seconds / expected, True
            return
        ratio = min(max(seconds / expected, 1.0 / MOST), MOST)
        if extra:
            # A round says more of what its drafted tokens add than of the machine; plain ones say that.
            curve.correct(extra, seconds / self.speed, rounds)
            self.speed *= ratio ** _step(SPEED_STEP, rounds)
        else:
            # The machine's speed is that of all batch sizes; the table may be wrong of one.
            curve.plain *= ratio ** _step(LEVEL_STEP, rounds)
            self.speed *= ratio ** _step(PLAIN_STEP, rounds)

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
        """Learn from drafts, `depth` deep, and the seconds of each, before the first of which so many tokens
        had to be run; the seconds of all and of what came before, but no more than a multiple of what was
        expected."""
        times = self.draft(name, looks_up, batch_size)
        expected = times(depth)
        if pending <= MUCH or looks_up:
            usual = OUTLIER * max(expected, LOOKUP * self.plain_seconds(batch_size))
            whole = sum(min(each, usual) for each in seconds)
            times.observe(depth, whole / len(seconds), cold, len(seconds))
            return whole, 0.0
        most = max(self.prefill_seconds(name, pending), pending * PREFILL * times.per_token)
        expected *= len(seconds)
        before = min(max(sum(seconds) - expected, 0.0), OUTLIER * most)
        known = self._prefill.get(name)
        share = before / pending
        self._prefill[name] = share if known is None else 0.5 * (known + share)
        return expected, before

    def measured(self, name: str, token_seconds: float, fixed_seconds: float) -> None:
        """Take in what drafts were measured to take before the first request."""
        self._at_first[name] = token_seconds, fixed_seconds
        self._drafts[name, 1] = DraftTimes(token_seconds, fixed_seconds, MEASURED)

    def as_dict(self) -> dict[str, Any]:
        """What was learned of drafts, ready for JSON, in seconds; what can be computed is not kept."""
        return {
            name: [times.per_token, times.fixed, self._prefill.get(name)]
            for (name, batch_size), times in self._drafts.items()
            if batch_size == 1
            and not times.computed
            and (times.timed > COLD or name in self._at_first)
        }

    def restore(self, values: Any) -> None:
        """Begin with what `as_dict` has given."""
        for name, (token, fixed, prefill) in dict(values).items():
            numbers = [float(value) for value in (token, fixed, prefill or 0.0)]
            if not all(0.0 <= value < LONGEST_SECONDS for value in numbers):
                raise ValueError(f"seconds of {name}")
            self.measured(str(name), *numbers[:2])
            if prefill is not None:
                self._prefill[str(name)] = numbers[2]
