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
    "emitted, consecutive": "what a token does says nothing about the next one",
    "round start, by draft": "the first token of a round follows the target's row, in the order "
    "in which the draft favours tokens",
    "drafted, by id": "each drafted token follows the row that was recorded for it",
    "drafted, by rank": "the same in the order of probability",
    "accepted, by rank": "accepted tokens follow min(p, q), as the token rule implies",
    "path ends": "the accepted path ends where the rule's decision says",
    "recovered, by id": "recovered tokens follow the residual of the decision",
    "recovered, by rank": "the same in the order of probability",
    "bonus, by rank": "bonus tokens follow the target's row",
}


@dataclass
class Tests:
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

    def consecutive(self, name: str, places: Floats) -> None:
        """Feed a test of independence with the transforms of one text, in order."""
        scores = smooth_scores(places, 1)
        self.named(name, 1).add(scores[1:] * scores[:-1])

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
