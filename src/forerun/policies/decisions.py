"""Results of rounds, and counts of a policy's decisions and of what they brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forerun.core import Draft, RoundTimes, Verdict

Report = Mapping[str, Mapping[str, float]]
"""Results of a policy's choices by name, as `Policy.report` returns them."""


class Seen(NamedTuple):
    """Results of a round.

    Args:
        batch_size: number of requests.
        forward, draft, planning: seconds of the round without its draft, of drafting and of planning.
        depth: depth of the drafters' deepest draft; 0, and none of the rest, in a plain round.
        nodes, emitted: drafted and emitted tokens of each request.
        accepted: accepted tokens of each request; None for tokens that its mask forced.
    """

    batch_size: int
    forward: float
    draft: float
    planning: float
    depth: int = 0
    nodes: Sequence[int] = ()
    emitted: Sequence[int] = ()
    accepted: Sequence[int | None] = ()

    @classmethod
    def of(
        cls,
        batch_size: int,
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
        planning: float,
    ) -> Seen:
        """A round of these drafts; no drafts at all are a plain round."""
        seen = cls(batch_size, times.target + times.verify, times.draft, planning)
        if not drafts:
            return seen
        pairs = list(zip(drafts, verdicts, strict=True))
        return seen._replace(
            depth=max(draft.tree.depth for draft in drafts if not draft.forced),
            nodes=[len(draft) for draft in drafts],
            emitted=[len(verdict.token_ids) for verdict in verdicts],
            accepted=[None if draft.forced else own.num_accepted for draft, own in pairs],
        )


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
