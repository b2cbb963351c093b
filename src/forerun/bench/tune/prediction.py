"""Predicted gain of every setting, by replaying what was recorded of its candidate."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from forerun.bench.rows import MeasuredPair, PairKey, Side
from forerun.bench.session import grouped
from forerun.bench.tune.candidates import Candidate
from forerun.bench.tune.fit import fit_costs
from forerun.bench.tune.records import RecordedOutput, Records
from forerun.contracts import Drafter
from forerun.core import Request
from forerun.costs.rounds import RoundCosts, Seconds
from forerun.params import SamplingParams


@dataclass
class Replayed:
    """The result of a replay.

    Args:
        prompts: seconds of the prompts.
        seconds: seconds of rounds by stage.
        rounds: number of target forwards.
        parts: number of rounds of each request, added up.
        tokens, drafted, accepted: numbers of tokens.
    """

    prompts: float = 0.0
    seconds: Seconds = field(default_factory=lambda: Seconds(0.0, 0.0, 0.0, 0.0))
    rounds: int = 0
    parts: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def total(self) -> float:
        """Seconds of all rounds, prompts included."""
        return self.prompts + float(self.seconds.total)

    def __iadd__(self, other: Replayed) -> Replayed:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def replay(outputs: Sequence[RecordedOutput], costs: RoundCosts, num_tokens: int) -> Replayed:
    """Decode outputs of a candidate side by side, each round with a draft of the same length.

    Args:
        outputs: one a request.
        costs: costs of the candidate's rounds.
        num_tokens: length of the drafts; 0 decodes plainly.
    """
    positions = [0] * len(outputs)
    started: set[int] = set()
    result = Replayed(sum(costs.prompt(len(output.prompt_ids)) for output in outputs))
    while running := [i for i, output in enumerate(outputs) if positions[i] < len(output)]:
        contexts, nodes, drafts, first = [], [], [], 0.0
        for index in running:
            output, at = outputs[index], positions[index]
            context = len(output.prompt_ids) + at
            drafted = output.drafted(at, num_tokens)
            contexts.append(context)
            nodes.append(0 if drafted is None else output.verified(at, drafted))
            if drafted is not None:
                drafts.append(nodes[-1])
                first += costs.first_draft * context * (index not in started)
                started.add(index)
            emitted = output.advance(at, drafted or 0)
            positions[index] += emitted
            result.tokens += emitted
            result.drafted += drafted or 0
            result.accepted += min(drafted or 0, output.accepted[at])
        result.rounds += 1
        result.parts += len(running)
        result.seconds += _round_seconds(costs, contexts, nodes, drafts, first)
    return result


def _round_seconds(
    costs: RoundCosts,
    contexts: Sequence[int],
    nodes: Sequence[int],
    drafts: Sequence[int],
    first: float,
) -> Seconds:
    """Seconds of a round by stage.

    Args:
        contexts, nodes: context and verified nodes of each request.
        drafts: nodes of those that draft.
        first: seconds of first drafts.
    """
    count = len(contexts)
    context = sum(contexts) / count
    rest = costs.verifying(sum(nodes) / count, count, context)
    draft = costs.drafting(sum(drafts) / len(drafts), len(drafts), context) if drafts else 0.0
    return Seconds(first + draft, rest.target, rest.verify, rest.host)


def plain_seconds(outputs: Sequence[RecordedOutput], costs: RoundCosts) -> float:
    """Seconds of plain decoding of outputs side by side, prompts included."""
    prompts = [len(output.prompt_ids) for output in outputs]
    seconds = sum(costs.plain_prompt(prompt) for prompt in prompts)
    for position in range(max(map(len, outputs))):
        running = [p for p, output in zip(prompts, outputs, strict=True) if position < len(output)]
        context = sum(running) / len(running) + position
        seconds += costs.plain_seconds(len(running), context)
    return seconds


# Shares that differ by less are one.
_ALIKE = 1e-6


@dataclass(frozen=True)
class BreakEven:
    """Shortest context at which a setting is faster than plain decoding.

    Args:
        context: tokens; None if the setting is slower at all contexts.
        model_context: the longest context that was looked at.
        traffic_context: mean context of the traffic that acceptance was measured on.
        untested: drafts left out nothing of the cache there, so that acceptance at longer contexts may be
            lower.
    """

    context: int | None
    model_context: int
    traffic_context: float
    untested: bool


class Shares:
    """Cost of a drafted token in plain rounds of the same context, which falls with the context.

    Args:
        drafter: that declares it.
        longest: the model's context.
    """

    def __init__(self, drafter: Drafter, longest: int) -> None:
        self.longest = longest
        self.share_at = cache(lambda context: _share(drafter, context))

    @classmethod
    def of(cls, drafter: Drafter, longest: int) -> Shares | None:
        """Shares of a drafter; None where the context does not matter, or only measurements tell."""
        shares = cls(drafter, longest)
        ends = shares.share_at(1), shares.share_at(longest)
        known = [share for share in ends if share is not None and share > 0]
        return shares if len(known) == 2 and known[0] - known[1] > _ALIKE else None

    def break_even(self, drafting: float, rest: float, contexts: Sequence[float]) -> BreakEven:
        """Shortest context at which rounds take less time than plain decoding of what they emit.

        Args:
            drafting, rest: measured time of drafts, and of all else in rounds, over that of plain decoding
                of the same tokens: less where more is accepted.
            contexts: context of each output that they were measured on.
        """
        mean = sum(contexts) / len(contexts)
        # Plain decoding takes 1, so drafts may take 1 - rest; what they take is in proportion to the share.
        bound = self._at(mean) * (1.0 - rest) / drafting
        untested = self._at(max(contexts)) >= self._at(1) - _ALIKE
        return BreakEven(self.first_below(bound), self.longest, mean, untested)

    def first_below(self, bound: float) -> int | None:
        """The least context at which the share is below a number; None if there is none."""
        every = range(1, self.longest + 1)
        index = bisect_left(every, True, key=lambda context: self._at(context) < bound)
        return every[index] if index < len(every) else None

    def _at(self, context: float) -> float:
        share = self.share_at(min(round(context), self.longest))
        assert share is not None
        return share


def _share(drafter: Drafter, context: int) -> float | None:
    return drafter.cost_share(Request(0, [0] * context, context, SamplingParams(), seed=0))


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
