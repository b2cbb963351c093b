"""Always-valid evidence that sampled tokens do not follow their rows: bets that a fair sampler cannot win.

A bet multiplies its stake by 1 + strength * score, where the score of a token has mean zero under its row
whatever came before. The mean of all stakes is a martingale then: it exceeds 1 / level at any time with
probability `level` at most (Ville), so one may look after every token and stop (Shafer, J. R. Stat. Soc. A
184, 2021; Ramdas et al., Statist. Sci. 38, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.theory.goodness_of_fit import mass_before, smooth_scores, transform
from forerun.theory.inputs import Floats, Ints

# Tokens less likely than this are remembered only once they came.
_LEAST_KNOWN = 0.01
# Scores are scaled to [-1, 1], so a strength below 1 never loses the whole stake.
_STRENGTHS = np.array(
    [sign * size for size in (0.03, 0.08, 0.2, 0.45, 0.8) for sign in (1.0, -1.0)]
)
POSITIONS = ("first token of a round", "bonus token")
_AT_POSITIONS = ("location", "spread", "said before")
SCORES = (
    *("by rank: location", "by rank: spread", "by rank: skewness", "by rank: tails"),
    *("by id: location", "by id: spread"),
    "tokens said before",
    *("like the token before, by rank", "like the token before, by id"),
    *("like all before in the answer, by rank", "like all before in the answer, by id"),
    *("as before behind this token", "as before behind this beginning"),
    *(f"{position}: {score}" for position in POSITIONS for score in _AT_POSITIONS),
)
"""Subjects of the bets."""
_BETS = len(SCORES) * len(_STRENGTHS)
_ROOTS = np.sqrt(2.0 * np.arange(1, 5) + 1.0)
# Total variation of the density 1 + m * sqrt(3) (2u - 1), in units of its mean score m.
_VARIATION = math.sqrt(3.0) / 4.0
# Normal quantile of POWER.
_QUANTILE = 1.2816


@dataclass
class Leanings:
    """Tokens that came more often than their rows predict, by the preceding token.

    A draft leans the same way whenever a text begins alike, which no score of ranks or ids sees.
    """

    _excess: dict[tuple[int, ...], dict[int, float]] = field(default_factory=dict)
    _variance: dict[tuple[int, ...], dict[int, float]] = field(default_factory=dict)

    def score(self, behind: tuple[int, ...], row: Floats, token: int) -> float:
        """Score of a token in [-1, 1], from what came here before it, then take it in."""
        excess = self._excess.setdefault(behind, {})
        variance = self._variance.setdefault(behind, {})
        leaning = {
            known: math.tanh(0.5 * excess[known] / math.sqrt(variance[known] + 1.0))
            for known in excess
        }
        score = leaning.get(token, 0.0) - sum(row[known] * lean for known, lean in leaning.items())
        for known in {*np.flatnonzero(row > _LEAST_KNOWN).tolist(), token}:
            share = float(row[known])
            excess[known] = excess.get(known, 0.0) + float(known == token) - share
            variance[known] = variance.get(known, 0.0) + share * (1.0 - share)
        return float(score) / 2.0


@dataclass
class AnswerScores:
    """Transforms of an answer's tokens, from which its scores are made.

    Args:
        random: draws the randomized transforms.
        memory: of all answers before.
        prompt: number of the prompt.
        origins: of the answer's tokens, as a server tells them; empty if it does not.
    """

    random: np.random.Generator
    memory: Leanings
    prompt: int
    origins: Sequence[str] = ()
    by_rank: list[float] = field(default_factory=list)
    by_id: list[float] = field(default_factory=list)
    others: list[list[float]] = field(default_factory=list)
    _said: list[int] = field(default_factory=list)

    def add(self, rows: Floats, chosen: Ints) -> None:
        """Add tokens [N] and the rows [N, V] that they should follow."""
        uniforms = self.random.random((2, len(rows)))
        self.by_rank += transform(*mass_before(rows, chosen, -rows), uniforms[0]).tolist()
        self.by_id += transform(*mass_before(rows, chosen), uniforms[1]).tolist()
        for row, token in zip(rows, chosen.tolist(), strict=True):
            said = sorted(set(self._said))
            repeats = float(token in said) - float(row[said].sum())
            behind = tuple(self._said[-1:]), (-1 - self.prompt, *self._said)
            remembered = [self.memory.score(tokens, row, token) for tokens in behind]
            self.others.append([repeats, *remembered])
            self._said.append(token)

    def scores(self) -> Floats:
        """Scores in [-1, 1], [N, SCORES]."""
        rank, number = (
            smooth_scores(np.array(values)) / _ROOTS for values in (self.by_rank, self.by_id)
        )
        columns = [*rank.T, *number.T[:2], np.array(self.others)[:, 0]]
        for first in (rank[:, 0], number[:, 0]):
            columns.append(np.append(0.0, first[1:] * first[:-1]))
        for first in (rank[:, 0], number[:, 0]):
            before = np.append(0.0, np.cumsum(first)[:-1]) / np.sqrt(np.arange(len(first)) + 1.0)
            columns.append(first * np.clip(before, -1.0, 1.0))
        columns += [*np.array(self.others)[:, 1:].T]
        for member in positions_of(self.origins, len(columns[0])):
            columns += [member * columns[index] for index in (0, 1, 6)]
        clipped: Floats = np.clip(np.stack(columns, 1), -1.0, 1.0)
        return clipped


def positions_of(origins: Sequence[str], count: int) -> Floats:
    """Membership of tokens in POSITIONS, [POSITIONS, count]; zero without origins.

    Both are decided before the token is drawn. A position between them is not: `block` and `traversal` accept
    a token by what was drafted behind it, so tokens that follow an accepted one need not follow their rows.
    """
    members = np.zeros((len(POSITIONS), count))
    if len(origins) == count:
        ends = ["", *origins[:-1]]
        members[0] = [before != "accepted" for before in ends]
        members[1] = [own == "bonus" for own in origins]
    return members


@dataclass
class Evidence:
    """Stakes of all bets over the tokens so far.

    Args:
        count: tokens so far.
        peak: largest logarithm so far of the mean stake.
    """

    count: int = 0
    peak: float = 0.0
    memory: Leanings = field(default_factory=Leanings)
    _stakes: Floats = field(default_factory=lambda: np.zeros((len(SCORES), len(_STRENGTHS))))

    def add(self, scores: Floats) -> None:
        """Add the scores [N, SCORES] of an answer."""
        for score in scores:
            self._stakes += np.log1p(score[:, None] * _STRENGTHS)
            self.peak = max(self.peak, self.value)
        self.count += len(scores)

    @property
    def value(self) -> float:
        """Logarithm of the mean stake."""
        return float(np.logaddexp.reduce(self._stakes, axis=None)) - math.log(_BETS)

    @property
    def strongest(self) -> str:
        """The score whose bets have won most."""
        return SCORES[int(self._stakes.max(1).argmax())]

    def alarms(self, level: float) -> bool:
        """True if the e-value of the tokens exceeds 1 / `level`."""
        return self.peak >= math.log(1.0 / level)


def tokens_needed(deviation: float, level: float) -> int:
    """Tokens after which a deviation in total variation is seen with probability POWER.

    The deviation is one that leans towards likely tokens or away from them, as another temperature does.
    """
    return math.ceil((_root(level) / deviation) ** 2)


def deviation_seen(tokens: int, level: float) -> float:
    """Smallest deviation that a number of tokens shows; see `tokens_needed`."""
    return _root(level) / math.sqrt(max(tokens, 1))


def _root(level: float) -> float:
    """Deviation times the root of the tokens that show it."""
    root = _QUANTILE + math.sqrt(_QUANTILE**2 + 2.0 * math.log(_BETS / level))
    return root * _VARIATION
