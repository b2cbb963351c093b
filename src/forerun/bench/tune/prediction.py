"""Predicted gain of every setting, by replaying what was recorded of its candidate."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from forerun.bench.rows import MeasuredPair, PairKey, Side
from forerun.bench.settings import DEFAULT, tokens_text
from forerun.bench.tune.contexts import BreakEven, Shares, break_even
from forerun.bench.tune.fit import fit_costs
from forerun.bench.tune.records import Confirmed, RecordedOutput, Records
from forerun.bench.tune.replay import Replayed, plain_seconds, prompt_seconds, replay
from forerun.bench.tune.workbench import Candidate
from forerun.costs.rounds import RoundCosts

MIXED = "mixed"
"""Category of prompts that run side by side and have several."""


@dataclass(frozen=True)
class Prediction:
    """A candidate at a length and a batch size.

    Args:
        candidate, num_tokens, batch_size: the setting.
        speedup: predicted gain over plain decoding, the median over prompts; prompts count.
        by_category: the gain by category.
        tokens_per_forward: mean over all prompts; 1 for plain decoding.
        acceptance_rate: accepted over verified tokens; None where nothing was drafted.
        draft_share: drafting's share of the time of rounds.
        break_even: context from which on it pays; None where drafts cost the same at all contexts.
        confirmed: the gain when it was run, the median over prompts; None where it was not.
        confirmed_by_category: that gain by category.
        pairs: both sides of each group of prompts, as run or else as predicted.
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
    pairs: tuple[MeasuredPair, ...] = field(default=(), repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the setting, as `forerun bench` has it."""
        return f"{self.candidate}, {tokens_text(self.num_tokens)}"

    @property
    def error(self) -> float | None:
        """Error of the prediction, as a share of what was confirmed."""
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

    def as_dict(self) -> dict[str, Any]:
        """The prediction, ready for JSON."""
        content = asdict(replace(self, pairs=())) | {"error": self.error}
        del content["pairs"]
        return content


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
                predictions.append(
                    _predict(setting, outputs, costs, shares, temperature_of(records))
                )
    return predictions


def _predict(
    setting: tuple[str, int, int],
    outputs: Sequence[RecordedOutput],
    costs: RoundCosts,
    shares: Shares | None,
    temperature: float = 0.0,
) -> Prediction:
    candidate, length, batch_size = setting
    total, plain = Replayed(), 0.0
    pairs = []
    for start in range(0, len(outputs), batch_size):
        group = outputs[start : start + batch_size]
        batch = [{candidate: output} for output in group]
        result = replay(batch, costs, candidate, length)
        total += result
        seconds = plain_seconds(batch, costs)
        plain += seconds - prompt_seconds(batch, costs)
        ids = tuple(output.prompt_id for output in group)
        sides = (result.tokens, result.seconds), (result.tokens, seconds)
        pairs.append((ids, _category(output.category for output in group), *sides))
    gain, by_category = _gains(pairs)
    found = Prediction(
        candidate=candidate,
        num_tokens=length,
        batch_size=batch_size,
        speedup=gain,
        by_category=by_category,
        tokens_per_forward=total.tokens / sum(total.choices.values()),
        acceptance_rate=total.accepted / total.drafted if total.drafted else None,
        draft_share=total.draft_seconds / total.round_seconds,
        break_even=None if shares is None else _break_even(shares, total, plain, outputs),
    )
    return replace(found, pairs=_rows(found.name, batch_size, pairs, temperature))


_Pair = tuple[tuple[str, ...], str, tuple[int, float], tuple[int, float]]
"""Prompts, their category, and tokens and seconds of both sides."""


def _gains(pairs: Sequence[_Pair]) -> tuple[float, dict[str, float]]:
    """The median ratio of tokens per second, and that of each category."""
    groups: dict[str, list[float]] = {}
    for _, category, ours, plain in pairs:
        groups.setdefault(category, []).append((ours[0] / ours[1]) / (plain[0] / plain[1]))
    every = statistics.median(gain for group in groups.values() for gain in group)
    groups.pop(MIXED, None)
    return every, {name: statistics.median(group) for name, group in groups.items()}


def _rows(
    name: str, batch_size: int, pairs: Sequence[_Pair], temperature: float
) -> tuple[MeasuredPair, ...]:
    """The pairs as `forerun bench` has them."""
    return tuple(
        MeasuredPair(
            PairKey(name, temperature, batch_size, category, ids),
            digest="",
            side=Side(*ours, None, (), (), {}),
            plain=Side(*plain, None, (), (), {}),
        )
        for ids, category, ours, plain in pairs
    )


def _category(categories: Iterable[str]) -> str:
    names = set(categories)
    return names.pop() if len(names) == 1 else MIXED


def _break_even(
    shares: Shares, total: Replayed, plain: float, outputs: Sequence[RecordedOutput]
) -> BreakEven | None:
    """From what was replayed, and what plain decoding takes without prompts; None without drafts."""
    if not total.drafted:
        return None
    drafting = total.draft_seconds / plain
    rest = (total.round_seconds - total.draft_seconds) / plain
    contexts = [len(output.prompt_ids) + len(output) / 2 for output in outputs]
    return break_even(shares, drafting, rest, contexts)


def with_confirmed(prediction: Prediction, records: Records) -> Prediction:
    """The prediction beside what was run."""
    setting = (prediction.candidate, prediction.num_tokens, prediction.batch_size)
    pairs = _confirmed(records, setting)
    if not pairs:
        return prediction
    gain, by_category = _gains(pairs)
    rows = _rows(prediction.name, prediction.batch_size, pairs, temperature_of(records))
    return replace(prediction, confirmed=gain, confirmed_by_category=by_category, pairs=rows)


def of_default(records: Records, batch_size: int) -> tuple[MeasuredPair, ...]:
    """Pairs of forerun's own choice, as it was run; empty if it was not."""
    pairs = _confirmed(records, (DEFAULT, 0, batch_size))
    return _rows(DEFAULT, batch_size, pairs, temperature_of(records))


def _confirmed(records: Records, setting: tuple[str, int, int]) -> list[_Pair]:
    """Both sides of each group of prompts that was run; all its turns count together."""
    turns: dict[tuple[str, str], list[Confirmed]] = {}
    for one in records.confirmed.values():
        if (one.candidate, one.num_tokens, one.batch_size) == setting:
            turns.setdefault((one.prompt_id, one.category or MIXED), []).append(one)
    return [
        (
            (first,),
            category,
            (sum(one.tokens for one in run), sum(one.seconds for one in run)),
            (sum(one.plain_tokens for one in run), sum(one.plain_seconds for one in run)),
        )
        for (first, category), run in turns.items()
    ]


def temperature_of(records: Records) -> float:
    """Temperature that the records were made with."""
    return float(records.made_with.get("temperature", 0.0))
