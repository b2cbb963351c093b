"""Predicted gain of every setting, by replaying what was recorded of its candidate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from forerun.bench.rows import MeasuredPair, PairKey, Side
from forerun.bench.session import grouped
from forerun.bench.tune.candidates import Candidate
from forerun.bench.tune.contexts import BreakEven, Shares
from forerun.bench.tune.fit import fit_costs
from forerun.bench.tune.records import RecordedOutput, Records
from forerun.bench.tune.replay import Replayed, plain_seconds, replay
from forerun.costs.rounds import RoundCosts


@dataclass(frozen=True)
class Prediction:
    """A candidate at a length and a batch size.

    Args:
        candidate, num_tokens, batch_size: the setting.
        predicted: both sides of each group of prompts, by the replay.
        tokens_per_forward: mean over all prompts; 1 for plain decoding.
        acceptance_rate: accepted over verified tokens; None where nothing was drafted.
        draft_share: drafting's share of the time of rounds.
        break_even: context from which on it pays; None where drafts cost the same at all contexts.
        run: both sides as they were measured; empty where it was not run.
    """

    candidate: Candidate
    num_tokens: int
    batch_size: int
    predicted: tuple[MeasuredPair, ...]
    tokens_per_forward: float = 1.0
    acceptance_rate: float | None = None
    draft_share: float = 0.0
    break_even: BreakEven | None = None
    run: tuple[MeasuredPair, ...] = ()

    @property
    def name(self) -> str:
        """Name of the setting, as `forerun bench` has it."""
        return self.candidate.setting_name(self.num_tokens)

    @cached_property
    def speedup(self) -> float:
        """Predicted gain over plain decoding, the median over prompts; prompts count."""
        return statistics.median(pair.speedup for pair in self.predicted)

    @cached_property
    def confirmed(self) -> float | None:
        """Gain when it was run, the median over prompts; None where it was not."""
        return statistics.median(pair.speedup for pair in self.run) if self.run else None

    @property
    def error(self) -> float | None:
        """Error of the prediction, as a share of what was confirmed."""
        return None if self.confirmed is None else self.speedup / self.confirmed - 1.0

    @property
    def best_known(self) -> float:
        """The confirmed speed-up, else the predicted one."""
        return self.speedup if self.confirmed is None else self.confirmed

    @property
    def loses_on(self) -> list[str]:
        """The categories where plain decoding is faster."""
        known = _by_category(self.run or self.predicted)
        return [name for name, value in known.items() if value < 1.0]

    @property
    def pays_from(self) -> float:
        """The shortest context at which it pays; infinite if there is none."""
        context = None if self.break_even is None else self.break_even.context
        return math.inf if context is None else context

    def as_dict(self) -> dict[str, Any]:
        """The prediction, ready for JSON."""
        return {
            "candidate": self.candidate.name,
            "num_tokens": self.num_tokens,
            "batch_size": self.batch_size,
            "speedup": self.speedup,
            "by_category": _by_category(self.predicted),
            "tokens_per_forward": self.tokens_per_forward,
            "acceptance_rate": self.acceptance_rate,
            "draft_share": self.draft_share,
            "break_even": self.break_even and vars(self.break_even),
            "confirmed": self.confirmed,
            "confirmed_by_category": _by_category(self.run) if self.run else None,
            "error": self.error,
        }


def _by_category(pairs: Sequence[MeasuredPair]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for pair in pairs:
        groups.setdefault(pair.key.category, []).append(pair.speedup)
    return {name: statistics.median(group) for name, group in groups.items()}


def costs_of(records: Records, candidate: str) -> RoundCosts:
    """The costs of a recorded candidate.

    Raises:
        ConfigError: where no rounds of it were timed.
    """
    timings = [timing for timing in records.timings.values() if timing.candidate == candidate]
    return fit_costs(timings, records.of(candidate))


def predict(
    records: Records,
    candidates: Iterable[Candidate],
    batch_sizes: Sequence[int] = (1,),
    shares: Mapping[str, Shares] | None = None,
) -> list[Prediction]:
    """Every candidate at every length and batch size, with what was run of it.

    Args:
        shares: by candidate, for those whose drafts cost less at longer contexts.
    """
    predictions = []
    for candidate in candidates:
        costs, outputs = costs_of(records, candidate.name), records.of(candidate.name)
        own = (shares or {}).get(candidate.name)
        for size in batch_sizes:
            for length in candidate.lengths:
                run = records.run(candidate.setting_name(length), size)
                setting = candidate, length, size
                temperature = float(records.made_with.get("temperature", 0.0))
                predictions.append(predicted(setting, outputs, costs, own, temperature, run))
    return predictions


def predicted(
    setting: tuple[Candidate, int, int],
    outputs: Sequence[RecordedOutput],
    costs: RoundCosts,
    shares: Shares | None = None,
    temperature: float = 0.0,
    run: tuple[MeasuredPair, ...] = (),
) -> Prediction:
    """A setting's gain on outputs, side by side in the groups that `forerun bench` makes of them."""
    candidate, length, batch_size = setting
    name, total, plain, pairs = candidate.setting_name(length), Replayed(), 0.0, []
    for [group] in grouped(outputs, [batch_size]):
        result, seconds = replay(group, costs, length), plain_seconds(group, costs)
        total += result
        plain += seconds - sum(costs.plain_prompt(len(one.prompt_ids)) for one in group)
        ids = tuple(one.prompt_id for one in group)
        key = PairKey(name, temperature, batch_size, group[0].category, ids)
        side = Side(result.tokens, result.total, None, (), (), {})
        pairs.append(MeasuredPair(key, "", side, replace(side, seconds=seconds)))
    rounds = total.seconds.total
    break_even = None
    if shares is not None and total.drafted:
        drafting = total.seconds.draft / plain
        contexts = [len(output.prompt_ids) + len(output) / 2 for output in outputs]
        break_even = shares.break_even(drafting, rounds / plain - drafting, contexts)
    return Prediction(
        candidate,
        length,
        batch_size,
        tuple(pairs),
        tokens_per_forward=total.tokens / total.parts,
        acceptance_rate=total.accepted / total.drafted if total.drafted else None,
        draft_share=total.seconds.draft / rounds,
        break_even=break_even,
        run=run,
    )
