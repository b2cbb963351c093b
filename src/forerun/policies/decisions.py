"""Counts of a policy's decisions, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Report = Mapping[str, Mapping[str, float]]
"""Results of a policy's choices by name, as `Policy.report` returns them."""


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
        self, drafter: str, length: int, rounds: int, emitted: float, seconds: float, plain: float
    ) -> None:
        """Add requests' rounds with the same choice.

        Args:
            drafter: name of the drafter.
            length: planned length.
            rounds: number of these rounds.
            emitted: tokens emitted in all of them.
            seconds: time of all of them.
            plain: seconds of plain rounds for as many tokens.
        """
        outcome = self._outcomes.setdefault((drafter, length), ChoiceResults())
        outcome.rounds += rounds
        outcome.emitted += emitted
        outcome.seconds += seconds
        outcome.saved_seconds += plain - seconds

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Results by drafter and length, such as `plain` or `suffix 4`, ready for JSON."""
        return {
            f"{drafter} {length}" if drafter else "plain": dict(vars(outcome))
            for (drafter, length), outcome in sorted(self._outcomes.items())
        }


def since(report: Report | None, before: Report | None) -> dict[str, dict[str, float]] | None:
    """A policy's report without what it held before; None for a policy that decides nothing."""
    if report is None:
        return None
    earlier = before or {}
    added = {
        choice: {name: value - earlier.get(choice, {}).get(name, 0) for name, value in held.items()}
        for choice, held in report.items()
    }
    return {choice: results for choice, results in added.items() if results["rounds"]}


def in_words(report: Report) -> str:
    """One line: each drafter's share of the rounds, and the time saved or lost in total."""
    if not report:
        return "nothing was decided"
    rounds = sum(results["rounds"] for results in report.values())
    by_drafter: dict[str, float] = {}
    for choice, results in report.items():
        name = choice.rpartition(" ")[0] or choice
        by_drafter[name] = by_drafter.get(name, 0) + results["rounds"]
    shares = ", ".join(f"{name} {count / rounds:.0%}" for name, count in by_drafter.items())
    saved = sum(results["saved_seconds"] for results in report.values())
    number = "1 round" if rounds == 1 else f"{rounds} rounds"
    return f"{number} ({shares}): {abs(saved):.3g} s {'saved' if saved >= 0 else 'lost'}"
