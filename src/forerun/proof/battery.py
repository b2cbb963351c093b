"""What is tested about outputs, by the place that a token has in its round."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forerun.theory.goodness_of_fit import (
    SMOOTH_DEGREES,
    Floats,
    Ints,
    ScoreTest,
    group_scores,
    mass_before,
    smooth_scores,
    transform,
)

NUM_GROUPS = 8
# Rows kept of each kind to state the power with.
SAMPLED_ROWS = 384

# Names of the tests, and what each one asks.
QUESTIONS = {
    "emitted, by id": "each token follows the target's row, in the order of token ids",
    "emitted, by rank": "the same in the order of probability",
    "emitted, by group": f"the same over {NUM_GROUPS} groups of tokens",
    "emitted, consecutive by id": "what a token is says nothing about the next one, in the order "
    "of token ids",
    "emitted, consecutive by rank": "the same in the order of probability",
    "round start, by draft": "the first token of a round follows the target's row, in the order "
    "in which the draft favours tokens",
    "drafted, by id": "each drafted token follows the row that was recorded for it",
    "drafted, by rank": "the same in the order of probability",
    "drafted, consecutive": "a drafted token says nothing about the one drafted after it",
    "drafted, round by round": "nor the first one of a draft about that of the next draft",
    "accepted, by rank": "accepted tokens of chains follow what the rule keeps: min(p, q) under "
    "token, min(w p, q) under block",
    "path ends": "the accepted path ends where the rule's decision says",
    "path ends, round by round": "where it ends says nothing about where the next one does",
    "recovered, by id": "recovered tokens follow the residual of the decision",
    "recovered, by rank": "the same in the order of probability",
    "bonus, by rank": "bonus tokens follow the target's row",
}


@dataclass
class Battery:
    """Score tests by name, fed with laws and outcomes.

    Args:
        random: what randomizes the transform.
        groups: the group of each token, [V].
    """

    random: np.random.Generator
    groups: Ints
    by_name: dict[str, ScoreTest] = field(default_factory=dict)

    def place(self, name: str, rows: Floats, chosen: Ints, keys: Floats | None = None) -> Floats:
        """Feed a smooth test with outcomes and their laws; the transforms, [N]."""
        low, own = mass_before(rows, chosen, keys)
        places = transform(low, own, self.random.random(len(rows)))
        self.named(name, SMOOTH_DEGREES).add(smooth_scores(places))
        return places

    def group(self, name: str, rows: Floats, chosen: Ints) -> None:
        """Feed a test of token groups."""
        self.named(name, int(self.groups.max()) + 1).add(*group_scores(rows, chosen, self.groups))

    def pairs(self, name: str, earlier: Floats, later: Floats) -> None:
        """Feed a test of independence with pairs of transforms, [N] and [N]: products of location
        and spread, which have mean zero where the later one is uniform given the earlier."""
        one, other = smooth_scores(earlier, 2), smooth_scores(later, 2)
        products = one[:, :, None] * other[:, None, :]
        self.named(name, 4).add(products.reshape(len(products), 4))

    def named(self, name: str, degrees: int) -> ScoreTest:
        return self.by_name.setdefault(name, ScoreTest(name, degrees))


def assign_groups(vocab_size: int, random: np.random.Generator) -> Ints:
    """A group for each token, of sizes as equal as can be."""
    groups: Ints = random.permutation(np.arange(vocab_size) % min(NUM_GROUPS, vocab_size))
    return groups


@dataclass
class SampledRows:
    """Some of the rows that were seen, spread over all of a run, to state its power with."""

    random: np.random.Generator
    seen: int = 0
    rows: list[tuple[Floats, ...]] = field(default_factory=list)

    def offer(self, *rows: Floats) -> None:
        """Keep a copy of the rows [V] that belong together, or not (Vitter's algorithm R)."""
        self.seen += 1
        place = len(self.rows)
        if place == SAMPLED_ROWS:
            place = int(self.random.integers(self.seen))
        if place < SAMPLED_ROWS:
            self.rows[place : place + 1] = [tuple(row.copy() for row in rows)]

    def stacked(self) -> list[Floats]:
        """Each of them as [N, V]."""
        return [np.array(several) for several in zip(*self.rows, strict=True)]
