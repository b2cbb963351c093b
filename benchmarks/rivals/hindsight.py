"""The choices that hindsight makes: the least that any policy could have paid for one recorded request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from benchmarks.rivals.costs import StageCosts
from benchmarks.rivals.replay import ReplayPolicy, View
from benchmarks.rivals.rounds import PLAIN, DraftChoice, Recorded


class Hindsight(ReplayPolicy):
    """Knows what will be accepted; for requests one at a time.

    Args:
        recorded: the request.
        costs: by candidate.
        lengths: that may be chosen, by candidate.
    """

    name = "hindsight"

    def __init__(
        self,
        recorded: Recorded,
        costs: Mapping[str, StageCosts],
        lengths: Mapping[str, Sequence[int]],
    ) -> None:
        self._plan = _best_choices(recorded, costs, lengths)
        self._started: frozenset[str] = frozenset()

    def choose(self, views: Sequence[View]) -> list[DraftChoice]:
        [view] = views
        choice = self._plan[view.position, self._started]
        if choice.candidate is not None:
            self._started |= {choice.candidate}
        return [choice]


_Plan = dict[tuple[int, frozenset[str]], DraftChoice]


def _best_choices(
    recorded: Recorded,
    costs: Mapping[str, StageCosts],
    lengths: Mapping[str, Sequence[int]],
) -> _Plan:
    """From the end of the output to its beginning: the best choice at each position, given which
    candidates have drafted before. Their first draft costs more."""
    output = next(iter(recorded.values()))
    usual = next(iter(costs))
    names = sorted(lengths)
    subsets = [
        frozenset(chosen) for n in range(len(names) + 1) for chosen in combinations(names, n)
    ]
    plan: _Plan = {}
    left = {(len(output), started): 0.0 for started in subsets}
    for at in reversed(range(len(output))):
        context = len(output.prompt_ids) + at
        room = output.max_tokens - at
        rounds = [(costs[usual].round(0, 1, context, drafts=False).total, PLAIN, 1)]
        if room > 1:
            for name in names:
                for length in lengths[name]:
                    one = recorded[name]
                    drafted = min(length, one.depths[at], room - 1)
                    whole = one.nodes[at] != one.depths[at] and drafted == one.depths[at]
                    nodes = one.nodes[at] if whole else drafted
                    seconds = costs[name].round(nodes, 1, context).total
                    rounds.append((seconds, DraftChoice(name, length), one.advance(at, drafted)))
        for started in subsets:
            best = float("inf")
            for seconds, choice, emitted in rounds:
                new = started if choice.candidate is None else started | {choice.candidate}
                total = seconds + left[at + emitted, new]
                if choice.candidate is not None and choice.candidate not in started:
                    total += costs[choice.candidate].first_draft * context
                if total < best:
                    best, plan[at, started] = total, choice
            left[at, started] = best
    return plan
