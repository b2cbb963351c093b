"""What most drafters have in common: a method is its `propose`, and what it does otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Several
from typing import Self

from forerun.contracts import Cache, DrafterSetup
from forerun.core import Draft, Drawing, Exactness, ForwardOutput, Plan, Sequence, Verdict
from forerun.randomness import Randomness


class BaseDrafter(ABC):
    """A drafter of point masses, from any vocabulary, for any number of sequences, that keeps
    nothing. It implements `forerun.contracts.Drafter` but for the proposals."""

    name: str
    exactness = Exactness.DISTRIBUTIONAL
    drawings: frozenset[Drawing] = frozenset({Drawing.TOP})
    draws_trees = False
    takes_trees = False
    needs_draft_model = False
    reads_predictions = False
    shared_layers: int = 0
    hidden_layers: tuple[int, ...] = ()
    vocab_size: int | None = None
    rows: int | None = None
    options: frozenset[str] = frozenset()

    @classmethod
    @abstractmethod
    def build(cls, setup: DrafterSetup) -> Self:
        """Make one for an engine."""

    @abstractmethod
    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One draft a sequence."""

    def attach(self, cache: Cache) -> None:
        """The target's cache is of no use to it."""

    def observe(
        self,
        sequences: Several[Sequence],
        drafts: Several[Draft],
        verdicts: Several[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Nothing to learn."""

    def confidence(self, sequence: Sequence) -> float:
        """It always has something to propose."""
        return 1.0

    def release(self, sequence: Sequence) -> None:
        """Nothing to forget."""
