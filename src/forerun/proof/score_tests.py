"""Score tests of outputs, by the role of a token in its round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.theory.goodness_of_fit import (
    SMOOTH_DEGREES,
    ScoreTest,
    group_scores,
    mass_before,
    ratio_scores,
    smooth_scores,
    surprise_scores,
    transform,
)
from forerun.theory.inputs import Floats, Ints

NUM_GROUPS = 8
# Number of rows of each kind in the sample for statements about power.
SAMPLED_ROWS = 384

# Meaning of each test, by its name.
QUESTIONS = {
    "emitted, by id": "each token follows the target's row, in the order of token ids",
    "emitted, by rank": "the same in the order of probability",
    "emitted, by log probability": "the mean log probability of tokens is what their rows expect",
    "emitted, by group": f"each token follows the row over {NUM_GROUPS} groups of tokens",
    "emitted, consecutive by id": "a token is independent of the next one, in the order of token ids",
    "emitted, consecutive by rank": "the same in the order of probability",
    "round start, by draft": "the first token of a round follows the target's row, in the order "
    "of the draft's preference",
    "round start, towards the draft": "the first token of a round is one that the draft favours as often "
    "as the target's row says",
    "drafted, by id": "each drafted token follows the row that was recorded for it",
    "drafted, by rank": "the same in the order of probability",
    "drafted, consecutive": "a drafted token is independent of the one drafted after it",
    "drafted, round by round": "the first token of a draft is independent of that of the next draft",
    "accepted, by rank": "accepted tokens of chains follow what the rule keeps: min(p, q) under "
    "token, min(w p, q) under block",
    "path ends": "the end of the accepted path follows the rule's decision",
    "path ends, round by round": "the end of a path is independent of the end of the next",
    "recovered, by id": "recovered tokens follow the residual of the decision",
    "recovered, by rank": "the same in the order of probability",
    "bonus, by rank": "bonus tokens follow the target's row",
}

# Shares of the level: tests for which detection limits are stated weigh more.
WEIGHTS = dict.fromkeys(QUESTIONS, 1.0) | dict.fromkeys(
    (
        "emitted, by log probability",
        "emitted, by group",
        "round start, by draft",
        "round start, towards the draft",
    ),
    4.0,
)


@dataclass
class ScoreTests:
    """Score tests by name, to which distributions and outcomes are added.

    Args:
        random: generator that randomizes the transform.
        groups: group of each token, [V].
    """

    random: np.random.Generator
    groups: Ints
    by_name: dict[str, ScoreTest] = field(default_factory=dict)

    def add(self, name: str, rows: Floats, chosen: Ints, keys: Floats | None = None) -> Floats:
        """Add outcomes and their rows to a smooth test, and return the transforms, [N]."""
        low, own = mass_before(rows, chosen, keys)
        transforms = transform(low, own, self.random.random(len(rows)))
        self.named(name, SMOOTH_DEGREES).add(smooth_scores(transforms))
        return transforms

    def add_groups(self, name: str, rows: Floats, chosen: Ints) -> None:
        """Add outcomes and their rows to a test of token groups."""
        self.named(name, int(self.groups.max()) + 1).add(*group_scores(rows, chosen, self.groups))

    def add_surprise(self, name: str, rows: Floats, chosen: Ints) -> None:
        """Add outcomes and their rows to a test of log probabilities."""
        self.named(name, 1).add(*surprise_scores(rows, chosen))

    def add_ratios(self, name: str, rows: Floats, ratios: Floats, chosen: Ints) -> None:
        """Add outcomes, their rows and the ratios of the draft's to a test of these."""
        self.named(name, 1).add(*ratio_scores(rows, ratios, chosen))

    def add_pairs(self, name: str, earlier: Floats, later: Floats) -> None:
        """Add pairs of transforms, [N] and [N], to a test of independence.

        The scores are products of location and spread. Their mean is zero if the later transform is
        uniform given the earlier one.
        """
        first, second = smooth_scores(earlier, 2), smooth_scores(later, 2)
        products = first[:, :, None] * second[:, None, :]
        self.named(name, 4).add(products.reshape(len(products), 4))

    def named(self, name: str, degrees: int) -> ScoreTest:
        return self.by_name.setdefault(name, ScoreTest(name, degrees))


def assign_groups(vocab_size: int, random: np.random.Generator) -> Ints:
    """A random group for each token, [V]; groups have nearly equal sizes."""
    groups: Ints = random.permutation(np.arange(vocab_size) % min(NUM_GROUPS, vocab_size))
    return groups


@dataclass
class SampledRows:
    """A random sample of the rows of a run, for statements about power."""

    random: np.random.Generator
    seen: int = 0
    rows: list[tuple[NDArray[np.float32], ...]] = field(default_factory=list)

    def offer(self, *rows: Floats) -> None:
        """Offer a tuple of rows [V] to the sample (Vitter's algorithm R)."""
        self.seen += 1
        slot = len(self.rows)
        if slot == SAMPLED_ROWS:
            slot = int(self.random.integers(self.seen))
        if slot < SAMPLED_ROWS:
            self.rows[slot : slot + 1] = [tuple(row.astype(np.float32) for row in rows)]

    def __iter__(self) -> Iterator[tuple[Floats, ...]]:
        """Each tuple of rows, in double precision, [1, V]."""
        for rows in self.rows:
            yield tuple(row[None].astype(np.float64) for row in rows)
