"""Counts of a policy's decisions, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class ChoiceResults:
    """Results of one choice.

    Args:
        rounds: number of requests' rounds in which it was made.
        emitted: emitted tokens.
        seconds: time of these rounds, by the costs that the policy knows.
        saved_seconds: time of plain rounds for the same number of tokens, less `seconds`; below
            zero, a loss.
    """

    rounds: int = 0
    emitted: float = 0.0
    seconds: float = 0.0
    saved_seconds: float = 0.0


class Decisions:
    """Outcomes by drafter and planned length; plain rounds are those of no drafter and length 0."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, int], ChoiceResults] = {}

    def count(
        self,
        drafter: str,
        length: int,
        requests: int,
        rounds: int,
        batch_size: int,
        emitted: float,
        seconds: float,
        plain: float,
    ) -> None:
        """Add the share of some requests in rounds with the same choice.

        Args:
            drafter: name of the drafter.
            length: planned length.
            requests: number of these requests.
            rounds: number of rounds.
            batch_size: number of all requests, among which tokens and seconds are divided.
            emitted: emitted tokens of all requests, in all rounds.
            seconds: time of all rounds.
            plain: seconds of a plain round of the same batch size.
        """
        outcome = self._outcomes.get((drafter, length))
        if outcome is None:
            outcome = self._outcomes[drafter, length] = ChoiceResults()
        share = requests / batch_size
        outcome.rounds += requests * rounds
        outcome.emitted += share * emitted
        outcome.seconds += share * seconds
        outcome.saved_seconds += share * (emitted / batch_size * plain - seconds)

    def count_plain(self, rounds: int, seconds: float) -> None:
        """Add requests' rounds without a draft, which took `seconds` in all."""
        outcome = self._outcomes.setdefault(("", 0), ChoiceResults())
        outcome.rounds += rounds
        outcome.emitted += rounds
        outcome.seconds += seconds

    @property
    def saved_seconds(self) -> float:
        """Seconds saved in all rounds together."""
        return sum(outcome.saved_seconds for outcome in self._outcomes.values())

    def as_dict(self) -> dict[str, Any]:
        """Outcomes by drafter and length, such as `plain` or `suffix 4`, ready for JSON."""
        return {
            f"{drafter} {length}" if drafter else "plain": vars(outcome)
            for (drafter, length), outcome in sorted(self._outcomes.items())
        }

    def in_words(self) -> str:
        """One line: each choice with its rounds, and the time that all of them saved or cost."""
        if not self._outcomes:
            return "nothing was decided"
        rounds = sum(outcome.rounds for outcome in self._outcomes.values())
        by_drafter: dict[str, int] = {}
        for (drafter, _), outcome in self._outcomes.items():
            by_drafter[drafter or "plain"] = by_drafter.get(drafter or "plain", 0) + outcome.rounds
        shares = ", ".join(f"{name} {count / rounds:.0%}" for name, count in by_drafter.items())
        saved = self.saved_seconds
        return f"{rounds} rounds ({shares}): {abs(saved):.3g} s {'saved' if saved >= 0 else 'lost'}"
