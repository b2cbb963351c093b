"""Record every candidate on a sample of prompts, predict what each setting gains, run the best ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from forerun.bench.rows import MeasuredPair
from forerun.bench.runs import EncodedPrompt
from forerun.bench.settings import DEFAULT
from forerun.bench.summary import summarize
from forerun.bench.tune.prediction import Prediction, of_default, predict, with_confirmed
from forerun.bench.tune.records import Records
from forerun.bench.tune.workbench import Candidate, Workbench
from forerun.bench.verdict import Recommendation, verdicts
from forerun.drafters import DRAFTERS
from forerun.engine.resolve import KNOWN_DRAFTS, default_method
from forerun.errors import ConfigError, ForerunError
from forerun.heads import HEADS
from forerun.models.zoo import packaged_head
from forerun.params import SamplingParams
from forerun.progress import report

# Prompts that rounds are timed on, and how often each at most.
TIMED_PROMPTS, MOST_TURNS = 6, 200
# Settings of one candidate among those that are confirmed.
MOST_OF_ONE = 2
LOOKUPS = ("ngram", "suffix", "token_recycling")

LoadCandidate = Callable[[Candidate, int], Workbench]
"""Loads a candidate for batches of a size."""
EncodeSample = Callable[[Workbench], Sequence[EncodedPrompt]]
"""The sample as the model's tokens."""


@dataclass
class Tuning:
    """Result of a run.

    Args:
        predictions: all of them, the best first; some with what was confirmed.
        refused: candidates that do not fit, with the reason.
        candidates: by name.
        default: pairs of forerun's own choice by batch size, where it was run too.
    """

    predictions: list[Prediction] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    default: dict[int, tuple[MeasuredPair, ...]] = field(default_factory=dict)

    def fitting(self) -> list[Candidate]:
        """Candidates that fit.

        Raises:
            ConfigError: if none does, with each reason.
        """
        if not self.candidates:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
            raise ConfigError(f"no candidate fits ({reasons})")
        return list(self.candidates.values())

    @property
    def confirmed(self) -> list[Prediction]:
        """The settings that were run, the best first."""
        found = [one for one in self.predictions if one.confirmed is not None]
        return sorted(found, key=lambda one: -(one.confirmed or 0.0))

    @property
    def from_contexts(self) -> list[Prediction]:
        """Setting that pays at the shortest context, for each batch size and candidate whose drafts cost less
        at longer ones."""
        chosen: dict[tuple[str, int], Prediction] = {}
        for one in self.predictions:
            key = one.candidate, one.batch_size
            if one.break_even is not None and (
                key not in chosen or _pays_from(one) < _pays_from(chosen[key])
            ):
                chosen[key] = one
        return list(chosen.values())

    def verdict(self, batch_size: int) -> Recommendation:
        """The verdict of `forerun bench` on a batch size: on the settings that were run, if any were, else
        on what is predicted of all."""
        found = [one for one in self.predictions if one.batch_size == batch_size]
        run = [one for one in found if one.confirmed is not None]
        pairs = [row for one in run or found for row in one.pairs]
        [verdict] = verdicts(summarize([*pairs, *self.default.get(batch_size, ())]))
        return verdict

    def best(self, batch_size: int) -> Prediction:
        """The setting that the verdict names, else the best of those that were run, if any were."""
        found = [one for one in self.predictions if one.batch_size == batch_size]
        use = self.verdict(batch_size).use
        run = [one for one in found if one.confirmed is not None]
        chosen = [one for one in found if one.name == use]
        return max(chosen or run or found, key=lambda one: one.best_known)


def default_candidates(
    model: str, longest: int, methods: Sequence[str] = (), draft_model: str | None = None
) -> list[Candidate]:
    """The drafters that fit a model: lookups, its known draft model, the heads that come with it.

    Args:
        model: as the user named it.
        longest: tokens of a draft at most.
        methods: those to try instead.
        draft_model: the draft model or head, for the methods that take one.
    """
    if methods:
        taking = {"draft_model", "cascade", *HEADS}
        return [Candidate(m, draft_model if m in taking else None, longest) for m in methods]
    found = [Candidate(method, None, longest) for method in LOOKUPS]
    if draft_model is not None:
        return [*found, Candidate(default_method(draft_model, model), draft_model, longest)]
    if model.rstrip("/") in KNOWN_DRAFTS:
        found.append(Candidate("draft_model", None, longest))
    heads = [kind for kind in HEADS if packaged_head(model, kind) is not None]
    return found + [Candidate(kind, None, longest) for kind in sorted(heads)]


def variants(
    candidates: Sequence[Candidate], draft_dtypes: Sequence[str], trees: Sequence[int]
) -> list[Candidate]:
    """The candidates, those with a draft model in several precisions, and those that can with trees."""
    found: list[Candidate] = []
    for one in candidates:
        by_dtype = [one]
        if draft_dtypes and DRAFTERS.find(one.method).needs_draft_model:
            by_dtype = [replace(one, options=(("draft_dtype", dtype),)) for dtype in draft_dtypes]
        found += by_dtype
        if DRAFTERS.find(one.method).takes_trees:
            found += [replace(v, tree_nodes=nodes) for v in by_dtype for nodes in trees]
    return found


def tune(
    load: LoadCandidate,
    encode: EncodeSample,
    candidates: Sequence[Candidate],
    params: SamplingParams,
    records: Records,
    *,
    batch_sizes: Sequence[int] = (1,),
    confirm: int = 3,
    seconds: float = 6.0,
    must_fit: bool = False,
) -> Tuning:
    """Record, predict, confirm. What `records` holds already is not measured again.

    Args:
        load, encode: the model and the sample.
        candidates: to try.
        params: of all requests.
        records: grows.
        batch_sizes: to predict for.
        confirm: settings to run, the best predicted of each batch size; forerun's own choice runs beside
            them unless the candidates were named.
        seconds: of timing a candidate at a batch size, and of confirming a setting.
        must_fit: the candidates were named: one that does not fit is an error.

    Raises:
        ForerunError: where no candidate fits.
    """
    tuning = Tuning()
    for number, candidate in enumerate(candidates):
        report("recording", number, len(candidates))
        try:
            bench = load(candidate, max(batch_sizes))
        except ForerunError as error:
            if must_fit:
                raise
            tuning.refused[candidate.name] = str(error)
            continue
        measure(bench, encode(bench), params, records, batch_sizes, seconds)
        tuning.candidates[candidate.name] = candidate
    report("recording", len(candidates), len(candidates))
    made = tuning.fitting()
    predictions = predict(records, made, batch_sizes)
    chosen = [one for size in batch_sizes for one in best_few(predictions, size, confirm)]
    for number, one in enumerate(chosen):
        report("confirming", number, len(chosen))
        if with_confirmed(one, records).confirmed is None:
            bench = load(tuning.candidates[one.candidate], one.batch_size)
            setting = one.num_tokens, one.batch_size
            run_setting(bench, encode(bench), params, records, setting, seconds)
    report("confirming", len(chosen), len(chosen))
    for size in batch_sizes if confirm and not must_fit else ():
        if not of_default(records, size):
            bench = load(Candidate(DEFAULT), size)
            run_setting(bench, encode(bench), params, records, (0, size), seconds)
        tuning.default[size] = of_default(records, size)
    found = [with_confirmed(one, records) for one in predictions]
    tuning.predictions = sorted(found, key=lambda one: -one.speedup)
    return tuning


def measure(
    bench: Workbench,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    records: Records,
    batch_sizes: Sequence[int],
    seconds: float,
) -> None:
    """Record a candidate on all prompts and time its rounds on some, where that was not done."""
    name = bench.candidate.name
    shares = bench.shares()
    if shares is not None and name not in records.shares:
        records.add(shares)
    missing = [p for p in prompts if (name, p.prompt_id) not in records.outputs]
    if missing:
        bench.warm_up(missing[0], params)
    for number, prompt in enumerate(missing):
        report(name, number, len(missing))
        records.add(bench.record(prompt, params))
    report(name, len(missing), len(missing))
    step = max(1, len(prompts) // TIMED_PROMPTS)
    for batch_size in batch_sizes:
        done = [key for key in records.timings if key[0] == name and key[2] == batch_size]
        if not done:
            if not missing:
                bench.warm_up(prompts[0], params)
            _time(bench, prompts[::step][:TIMED_PROMPTS], params, records, batch_size, seconds)


def _time(
    bench: Workbench,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    records: Records,
    batch_size: int,
    seconds: float,
) -> None:
    """Time the prompts in turns, for so many seconds, each once at least."""
    started, found = perf_counter(), []
    for turn in range(MOST_TURNS):
        for prompt in prompts:
            found.append(bench.time(prompt, params, batch_size, turn))
        spent = perf_counter() - started
        report(f"{bench.candidate.name}, times", min(int(spent), int(seconds)), int(seconds) + 1)
        if spent >= seconds:
            break
    # At once: half of them would be taken for all of them.
    records.add(*found)


def run_setting(
    bench: Workbench,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    records: Records,
    setting: tuple[int, int],
    seconds: float,
) -> None:
    """Run a length and batch size beside plain decoding on all prompts, again as long as there is time."""
    num_tokens, size = setting
    groups: list[Any] = [prompts[at : at + size] for at in range(0, len(prompts), size)]
    bench.warm_up(prompts[0], params)
    started, found = perf_counter(), []
    for turn in range(MOST_TURNS):
        for group in groups:
            found.append(bench.pair(group, params, num_tokens, turn))
        if perf_counter() - started >= seconds:
            break
    records.add(*found)


def _pays_from(one: Prediction) -> float:
    """The shortest context at which it pays; infinite if there is none."""
    context = None if one.break_even is None else one.break_even.context
    return math.inf if context is None else context


def best_few(predictions: Sequence[Prediction], batch_size: int, count: int) -> list[Prediction]:
    """The best predicted settings of a batch size, no more than two of the same candidate unless there
    are no others."""
    ranked = sorted(
        (one for one in predictions if one.batch_size == batch_size), key=lambda one: -one.speedup
    )
    chosen: list[Prediction] = []
    for one in ranked:
        if sum(other.candidate == one.candidate for other in chosen) < MOST_OF_ONE:
            chosen.append(one)
    chosen += [one for one in ranked if one not in chosen]
    return chosen[:count]
