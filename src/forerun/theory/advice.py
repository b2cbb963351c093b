"""Advice in words on whether speculation pays for given costs, compared with the rules of thumb.

The rules of thumb are those of five public texts (docs/theory.md, section 12).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

import numpy as np

from forerun.errors import ConfigError
from forerun.options import check, plain
from forerun.theory import formulas

LONGEST = 16
# A difference from 1 up to which a speed-up or cost counts as none.
HARDLY = 0.02
_COST = {"ge": 1e-9, "le": 1e9}


class RuleOfThumb(NamedTuple):
    """A rule of thumb for one range of a figure.

    Args:
        low, high: the range, its lower end included.
        words: the promise.
        least, most: the range of speed-ups that the promise allows, both ends included. None if nothing
            is promised.
    """

    low: float
    high: float
    words: str
    least: float | None = None
    most: float | None = None

    def allows(self, speedup: float) -> bool | None:
        """True if a speed-up keeps the promise; None if nothing is promised."""
        if self.least is None or self.most is None:
            return None
        return self.least <= speedup <= self.most


_ANY = math.inf

ACCEPTANCE = (
    RuleOfThumb(0.0, 0.30, "hurts", 0.0, 1.0),
    RuleOfThumb(0.30, 0.40, "too little for a draft model: look up or self-speculate", 0.0, 1.2),
    RuleOfThumb(0.40, 0.60, "modest", 1.0, 1.8),
    RuleOfThumb(0.60, 0.75, "substantial", 1.5, _ANY),
    RuleOfThumb(0.75, _ANY, "3 x and more", 3.0, _ANY),
)
"""Rules for the share of tested tokens that are accepted."""

COST_RATIO = (
    RuleOfThumb(0.0, 0.05, "cheaper than the sweet spot of 0.05 to 0.15"),
    RuleOfThumb(0.05, 0.15, "the sweet spot of 0.05 to 0.15", 1.0, _ANY),
    RuleOfThumb(0.15, 0.30, "above the sweet spot of 0.05 to 0.15"),
    RuleOfThumb(0.30, _ANY, "above 0.3, which rarely pays", 0.0, 1.0),
)
"""Rules for the time of a draft forward / time of a plain target forward."""


def rule_for(rules: tuple[RuleOfThumb, ...], figure: float) -> RuleOfThumb:
    """The rule whose range contains the figure."""
    return next(rule for rule in rules if figure < rule.high or rule.high == _ANY)


@dataclass(frozen=True)
class AdvicePoint:
    """One finding about a pair of models.

    Args:
        about: its subject: `speed-up`, `acceptance`, `cost ratio`, `checking`, `batch` or `change`.
        text: the computed result, and the rule of thumb for it.
        agrees: True if the rule of thumb holds for these costs; None without a rule.
    """

    about: str
    text: str
    agrees: bool | None = None


@dataclass(frozen=True)
class Advice:
    """Advice computed from the formulas.

    Args:
        length: tokens to draft per round; 0 if no length gains.
        speedup: expected speed-up at the best length, even if that loses.
        findings: the verdict, and then the reasons.
    """

    length: int
    speedup: float
    findings: tuple[AdvicePoint, ...]

    @property
    def gains(self) -> bool:
        """True if drafting is expected to be faster than plain decoding."""
        return self.length > 0

    def __str__(self) -> str:
        return "\n".join(finding.text for finding in self.findings)


@dataclass(frozen=True)
class _Case:
    """A round of one length: its tokens, and its costs in plain target forwards."""

    length: int
    tokens: float
    drafting: float
    checking: float

    @property
    def speedup(self) -> float:
        return self.tokens / (self.drafting + self.checking)


@dataclass(frozen=True)
class _Checking:
    """Cost of checking a draft: fixed, or given by the number of tokens in a forward."""

    points: tuple[tuple[int, float], ...]
    fixed: float = 1.0

    def cost(self, length: int, batch: int) -> float:
        """Cost of checking drafts of a length, in plain forwards of the batch."""
        if not self.points:
            return self.fixed
        return self._forward(batch * (length + 1)) / self._forward(batch)

    def _forward(self, tokens: int) -> float:
        for (n0, t0), (n1, t1) in pairwise(self.points):
            if tokens <= n1:
                return t0 + (t1 - t0) * (tokens - n0) / (n1 - n0)
        # The last measured slope may be negative by noise, but more tokens cost no less.
        return t1 + max(0.0, (t1 - t0) / (n1 - n0)) * (tokens - n1)


@dataclass(frozen=True)
class _Pair:
    """Known figures of a drafter and target; `acceptance` is that of a tested token, by position."""

    acceptance: tuple[float, ...]
    cost_ratio: float
    checking: _Checking
    batch: int

    @cached_property
    def survival(self) -> list[float]:
        """Probability that at least k + 1 drafted tokens are accepted, by k."""
        return list(accumulate(self.acceptance, mul))

    def cases(self, cost_ratio: float, batch: int) -> list[_Case]:
        """A round of each length."""
        survival = self.survival
        return [
            _Case(n, 1.0 + sum(survival[:n]), cost_ratio * n, self.checking.cost(n, batch))
            for n in range(1, len(survival) + 1)
        ]

    def best(self, *, cost_ratio: float | None = None, batch: int | None = None) -> _Case:
        """The round with the highest speed-up, the shortest among equals."""
        ratio = self.cost_ratio if cost_ratio is None else cost_ratio
        cases = self.cases(ratio, self.batch if batch is None else batch)
        return max(cases, key=lambda case: case.speedup)

    def overall(self, length: int) -> float:
        """Accepted / tested tokens for drafts of a length."""
        accepted = self.survival[:length]
        return sum(accepted) / (1.0 + sum(accepted[:-1]))

    @property
    def dearest_gain(self) -> float:
        """Cost ratio below which some length gains; negative if checking alone costs more."""
        cases = self.cases(0.0, self.batch)
        return max((case.tokens - case.checking) / case.length for case in cases)

    @property
    def least_acceptance(self) -> float | None:
        """Acceptance, equal at all positions, above which some length gains; None if there is none."""
        cases = self.cases(self.cost_ratio, self.batch)
        shares = formulas.break_even_acceptance(
            [case.length for case in cases],
            self.cost_ratio,
            verification_cost=[case.checking for case in cases],
        )
        reached = [share for share in np.asarray(shares).tolist() if not math.isnan(share)]
        return min(reached, default=None)


def advise(
    acceptance: float | Sequence[float],
    cost_ratio: float,
    *,
    verification_cost: float | Mapping[int, float] = 1.0,
    batch: int = 1,
    longest: int = LONGEST,
) -> Advice:
    """Compute the speed-up to expect from speculation, and compare it with the rules of thumb.

    Args:
        acceptance: share of *tested* tokens that are accepted (alpha), or one share for each position,
            [n]. With n shares, drafts of at most n tokens are considered.
        cost_ratio: time of a draft forward / time of a plain target forward, both for the batch.
        verification_cost: cost of checking a draft of any length, in plain forwards. Or measured values
            t(n)/t(1) of a target forward by its number of tokens n, interpolated between the given n
            and extrapolated with the last slope.
        batch: requests decoded at once; used only with costs by n.
        longest: most tokens to draft.

    Raises:
        ConfigError: for a share outside [0, 1], costs that are negative or not numbers, or a batch or
            length below 1.
    """
    most: int = check("longest", longest, int, ge=1, le=1 << 10)
    given = plain(acceptance)
    if given == ():
        raise ConfigError("acceptance is empty; give a share, or one for each position.")
    measured = given if isinstance(given, tuple) else ()
    shares = [check("acceptance", n, float, ge=0.0, le=1.0) for n in measured or (given,)]
    pair = _Pair(
        tuple(shares[:most] if measured else shares * most),
        check("cost_ratio", cost_ratio, float, ge=0.0, le=1e9),
        _checking(verification_cost),
        check("batch", batch, int, ge=1),
    )
    best = pair.best()
    findings = [
        _verdict(best, len(measured)),
        _on_acceptance(pair, best),
        _on_cost_ratio(pair, best),
        *_on_checking(best),
        *_on_batch(pair, best),
        *_on_change(pair, best),
    ]
    return Advice(best.length if best.speedup > 1.0 else 0, best.speedup, tuple(findings))


def _checking(costs: float | Mapping[int, float]) -> _Checking:
    given = plain(costs)
    if not isinstance(given, dict):
        return _Checking((), check("verification_cost", given, float, **_COST))
    numbers = [check("a number of tokens", n, int, ge=1) for n in given]
    times = [check("a verification cost", cost, float, **_COST) for cost in given.values()]
    points = {1: 1.0, **dict(zip(numbers, times, strict=True))}
    if len(points) < 2:
        raise ConfigError("verification_cost says nothing; give t(n)/t(1) for an n above 1.")
    return _Checking(tuple(sorted(points.items())))


def _verdict(best: _Case, measured: int) -> AdvicePoint:
    """The expected speed-up; `measured` is the number of positions with an acceptance of their own."""
    whole = f"{best.drafting + best.checking:.2f} plain forwards"
    cost = f"{best.tokens:.2f} tokens a round, which costs {whole}"
    at = f"{best.speedup:.2f} x at best, drafting {_tokens(best.length)}"
    if best.speedup > 1.0 + HARDLY:
        end = " No longer drafts were measured." if best.length == measured else ""
        return AdvicePoint("speed-up", f"Gains {at}: {cost}.{end}")
    if best.speedup > 1.0:
        return AdvicePoint("speed-up", f"Hardly better than plain decoding, {at}: {cost}.")
    return AdvicePoint("speed-up", f"Loses at every length, {at}: {cost}. Decode plainly.")


def _on_acceptance(pair: _Pair, best: _Case) -> AdvicePoint:
    share = pair.overall(best.length)
    rule = rule_for(ACCEPTANCE, share)
    holds = rule.allows(best.speedup)
    text = f"Acceptance {share:.2f}: by rule of thumb {rule.words}. "
    if holds:
        text += f"For these costs that is right: {best.speedup:.2f} x."
    else:
        more = rule.most is not None and best.speedup > rule.most
        text += (
            f"For these costs it is {'more' if more else 'less'}, {best.speedup:.2f} x: of a round's "
            f"{best.tokens:.2f} tokens, drafting takes the time of {best.drafting:.2f} and checking that "
            f"of {best.checking:.2f}."
        )
    return AdvicePoint("acceptance", text, holds)


def _on_cost_ratio(pair: _Pair, best: _Case) -> AdvicePoint:
    rule, limit = rule_for(COST_RATIO, pair.cost_ratio), pair.dearest_gain
    text = f"Cost ratio {pair.cost_ratio:.2f}: {rule.words}. "
    if limit > 0.0:
        text += (
            "With this acceptance and this cost of checking, drafts gain while a drafted token costs less "
            f"than {limit:.2f} plain forwards."
        )
    else:
        text += "Checking alone costs more than it yields; no draft is cheap enough."
    holds = rule.allows(best.speedup)
    if holds is False:
        text += f" The rule of thumb is wrong here: {best.speedup:.2f} x."
    return AdvicePoint("cost ratio", text, holds)


def _on_checking(best: _Case) -> Iterator[AdvicePoint]:
    if best.checking > 1.0 + HARDLY:
        free = best.tokens / (best.drafting + 1.0)
        text = (
            f"Checking {_tokens(best.length)} costs {best.checking:.2f} plain forwards and not 1; "
            f"were it free, the same drafts would give {free:.2f} x."
        )
        yield AdvicePoint("checking", text)


def _on_batch(pair: _Pair, best: _Case) -> Iterator[AdvicePoint]:
    if pair.batch == 1:
        return
    alone = pair.best(batch=1)
    text = f"Batch {pair.batch}: {best.speedup:.2f} x, where one request alone has {alone.speedup:.2f} x."
    if alone == best:
        text = f"Batch {pair.batch}: the costs are taken as measured at that batch."
    yield AdvicePoint("batch", text)


def _on_change(pair: _Pair, best: _Case) -> Iterator[AdvicePoint]:
    """The changes that would turn a loss into a gain."""
    if best.speedup > 1.0:
        return
    needed, limit = pair.least_acceptance, pair.dearest_gain
    ways = []
    if needed is not None and needed < 1.0:
        ways.append(f"an acceptance above {needed:.2f}")
    if limit > 0.0:
        free = pair.best(cost_ratio=0.0)
        ways.append(
            f"a cost ratio below {limit:.2f}; a free draft, such as looking up, accepted as "
        )
        ways[-1] += f"often would give {free.speedup:.2f} x"
    text = "It would gain from " + ", or from ".join(ways) + "."
    yield AdvicePoint(
        "change", text if ways else "Neither a better nor a cheaper draft would help."
    )


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
