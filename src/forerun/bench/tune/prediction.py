"""What every setting would gain, by replaying what was recorded of its candidate."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from forerun.bench.tune.contexts import BreakEven, Shares, break_even
from forerun.bench.tune.fit import fit_costs
from forerun.bench.tune.records import Output, Records
from forerun.bench.tune.replay import Replayed, plain_seconds, prompt_seconds, replay
from forerun.bench.tune.workbench import Candidate
from forerun.costs.rounds import RoundCosts


@dataclass(frozen=True)
class Prediction:
    """A candidate at a length and a batch size.

    Args:
        candidate, num_tokens, batch_size: the setting.
        speedup: over plain decoding, the median over prompts; prompts count.
        by_category: the same by category.
        tokens_per_forward: over all prompts; 1 for plain decoding.
        acceptance_rate: accepted over verified tokens; None where nothing was drafted.
        draft_share: of the time of rounds.
        break_even: from which context on it pays; None where drafts cost the same at all contexts.
        confirmed: the speed-up when it was run, the median over prompts; None where it was not.
        confirmed_by_category: the same by category.
    """

    candidate: str
    num_tokens: int
    batch_size: int
    speedup: float
    by_category: dict[str, float]
    tokens_per_forward: float
    acceptance_rate: float | None
    draft_share: float
    break_even: BreakEven | None = None
    confirmed: float | None = None
    confirmed_by_category: dict[str, float] | None = None

    @property
    def error(self) -> float | None:
        """Of the prediction, as a share of what was confirmed."""
        return None if self.confirmed is None else self.speedup / self.confirmed - 1.0

    @property
    def best_known(self) -> float:
        """The confirmed speed-up, else the predicted one."""
        return self.speedup if self.confirmed is None else self.confirmed

    @property
    def loses_on(self) -> dict[str, float]:
        """The categories where plain decoding is faster."""
        known = self.confirmed_by_category or self.by_category
        return {name: value for name, value in known.items() if value < 1.0}


def costs_of(records: Records, candidate: str) -> RoundCosts:
    """The costs of a recorded candidate.

    Raises:
        ConfigError: where no rounds of it were timed.
    """
    timings = [timing for timing in records.timings.values() if timing.candidate == candidate]
    return fit_costs(timings, records.of(candidate))


def predict(
    records: Records, candidates: Iterable[Candidate], batch_sizes: Sequence[int] = (1,)
) -> list[Prediction]:
    """Every candidate at every length and batch size."""
    predictions = []
    for candidate in candidates:
        costs, outputs = costs_of(records, candidate.name), records.of(candidate.name)
        shares = records.shares.get(candidate.name)
        for batch_size in batch_sizes:
            for length in candidate.lengths:
                setting = candidate.name, length, batch_size
                predictions.append(_predict(setting, outputs, costs, shares))
    return predictions


def _predict(
    setting: tuple[str, int, int],
    outputs: Sequence[Output],
    costs: RoundCosts,
    shares: Shares | None,
) -> Prediction:
    candidate, length, batch_size = setting
    total, plain = Replayed(), 0.0
    gains: list[tuple[str, float]] = []
    for start in range(0, len(outputs), batch_size):
        group = outputs[start : start + batch_size]
        batch = [{candidate: output} for output in group]
        result = replay(batch, costs, candidate, length)
        total += result
        seconds = plain_seconds(batch, costs)
        plain += seconds - prompt_seconds(batch, costs)
        categories = {output.category for output in group}
        name = categories.pop() if len(categories) == 1 else ""
        gains.append((name, seconds / result.seconds))
    by_category = medians(gains)
    return Prediction(
        candidate=candidate,
        num_tokens=length,
        batch_size=batch_size,
        speedup=statistics.median(gain for _, gain in gains),
        by_category=by_category,
        tokens_per_forward=total.tokens / sum(total.choices.values()),
        acceptance_rate=total.accepted / total.drafted if total.drafted else None,
        draft_share=total.draft_seconds / total.round_seconds,
        break_even=None if shares is None else _break_even(shares, total, plain, outputs),
    )


def _break_even(
    shares: Shares, total: Replayed, plain: float, outputs: Sequence[Output]
) -> BreakEven | None:
    """From what was replayed, and what plain decoding takes without prompts; None without drafts."""
    if not total.drafted:
        return None
    drafting = total.draft_seconds / plain
    rest = (total.round_seconds - total.draft_seconds) / plain
    contexts = [len(output.prompt_ids) + len(output) / 2 for output in outputs]
    return break_even(shares, drafting, rest, contexts)


def medians(gains: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The median by category; those of groups with several categories are left out."""
    groups: dict[str, list[float]] = {}
    for name, gain in gains:
        groups.setdefault(name, []).append(gain)
    groups.pop("", None)
    return {name: statistics.median(group) for name, group in groups.items()}


def with_confirmed(prediction: Prediction, records: Records) -> Prediction:
    """The prediction beside what was run."""
    setting = (prediction.candidate, prediction.num_tokens, prediction.batch_size)
    turns: dict[tuple[str, str], list[float]] = {}
    for one in records.confirmed.values():
        if (one.candidate, one.num_tokens, one.batch_size) == setting:
            turns.setdefault((one.prompt_id, one.category), []).append(one.speedup)
    if not turns:
        return prediction
    gains = [(category, statistics.median(found)) for (_, category), found in turns.items()]
    return replace(
        prediction,
        confirmed=statistics.median(gain for _, gain in gains),
        confirmed_by_category=medians(gains),
    )
