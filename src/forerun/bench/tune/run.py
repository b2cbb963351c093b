"""Record every candidate on a sample of prompts, predict what each setting gains, run the best ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from forerun.bench.engines import Prepared, Workshop
from forerun.bench.rows import MeasuredPair
from forerun.bench.session import BenchSession
from forerun.bench.settings import DEFAULT, Setting
from forerun.bench.summary import summarize
from forerun.bench.tune.candidates import Candidate
from forerun.bench.tune.prediction import Prediction, Shares, predict
from forerun.bench.tune.records import Records
from forerun.bench.tune.steering import SetLength
from forerun.bench.tune.workbench import Workbench
from forerun.bench.verdict import Recommendation, verdicts
from forerun.engine.config import SpeculativeConfig
from forerun.engine.resolve import choose
from forerun.errors import ConfigError, ForerunError
from forerun.params import SamplingParams
from forerun.progress import report

# Prompts that rounds are timed on, and how often each at most.
TIMED_PROMPTS, MOST_TURNS = 6, 200
# Settings of one candidate among those that are confirmed.
MOST_OF_ONE = 2


@dataclass
class Tuning:
    """Result of a run.

    Args:
        predictions: all of them, the best first; some with what was confirmed.
        refused: candidates that do not fit, with the reason.
        default: pairs of forerun's own choice by batch size, where it was run too.
    """

    predictions: list[Prediction] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    default: dict[int, tuple[MeasuredPair, ...]] = field(default_factory=dict)

    @property
    def confirmed(self) -> list[Prediction]:
        """The settings that were run."""
        return [one for one in self.predictions if one.run]

    @property
    def from_contexts(self) -> list[Prediction]:
        """Setting that pays at the shortest context, for each batch size and candidate whose drafts cost less
        at longer ones."""
        chosen: dict[tuple[str, int], Prediction] = {}
        for one in self.predictions:
            key = one.candidate.name, one.batch_size
            if one.break_even is not None and (
                key not in chosen or one.pays_from < chosen[key].pays_from
            ):
                chosen[key] = one
        return list(chosen.values())

    def known(self, batch_size: int) -> list[Prediction]:
        """The settings of a batch size that were run, or all of them if none was."""
        found = [one for one in self.predictions if one.batch_size == batch_size]
        return [one for one in found if one.run] or found

    def verdict(self, batch_size: int) -> Recommendation:
        """The verdict of `forerun bench` on a batch size: on the settings that were run, if any were, else
        on what is predicted of all."""
        pairs = [row for one in self.known(batch_size) for row in one.run or one.predicted]
        [verdict] = verdicts(summarize([*pairs, *self.default.get(batch_size, ())]))
        return verdict

    def best(self, batch_size: int) -> Prediction:
        """The setting that the verdict names, else the best of those that were run, if any were."""
        known, use = self.known(batch_size), self.verdict(batch_size).use
        chosen = [one for one in known if one.name == use]
        return max(chosen or known, key=lambda one: one.best_known)


@dataclass(frozen=True)
class Tuner:
    """Measurements of candidates; what its records hold already is not measured again.

    Args:
        workshop: of the model.
        model: as the user named it.
        prepared: the sample.
        params: of all requests.
        records: grow.
        batch_sizes: to predict for.
        seconds: of timing a candidate at a batch size.
    """

    workshop: Workshop
    model: str
    prepared: Prepared
    params: SamplingParams
    records: Records
    batch_sizes: Sequence[int] = (1,)
    seconds: float = 6.0

    def tune(
        self, candidates: Sequence[Candidate], confirm: int = 3, must_fit: bool = False
    ) -> Tuning:
        """Record, predict, confirm.

        Args:
            candidates: to try.
            confirm: settings to run, the best predicted of each batch size; forerun's own choice runs
                beside them unless the candidates were named.
            must_fit: the candidates were named: one that does not fit is an error.

        Raises:
            ForerunError: where no candidate fits.
        """
        tuning, fitting, shares = Tuning(), list[Candidate](), dict[str, Shares]()
        for number, candidate in enumerate(candidates):
            report("recording", number, len(candidates))
            try:
                bench = self._workbench(candidate)
            except ForerunError as error:
                if must_fit:
                    raise
                tuning.refused[candidate.name] = str(error)
                continue
            own = Shares.of(bench.drafter, bench.engine.target.max_context)
            shares |= {} if own is None else {candidate.name: own}
            self.measure(bench)
            fitting.append(candidate)
        report("recording", 1, 1)
        if not fitting:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in tuning.refused.items())
            raise ConfigError(f"no candidate fits ({reasons})")
        found = predict(self.records, fitting, self.batch_sizes, shares)
        for size in self.batch_sizes if confirm else ():
            chosen = [
                one.candidate.setting(one.num_tokens) for one in best_few(found, size, confirm)
            ]
            self._run(chosen if must_fit else [*chosen, self._default()], size)
            tuning.default[size] = self.records.run(DEFAULT, size)
        found = predict(self.records, fitting, self.batch_sizes, shares)
        tuning.predictions = sorted(found, key=lambda one: -one.speedup)
        return tuning

    def measure(self, bench: Workbench) -> None:
        """Record a candidate on all prompts and time its rounds on some, where that was not done."""
        name, prompts = bench.candidate.name, self.prepared.prompts
        missing = [p for p in prompts if (name, p.prompt_id) not in self.records.outputs]
        timed = {key[2] for key in self.records.timings if key[0] == name}
        if missing or set(self.batch_sizes) - timed:
            bench.warm_up(prompts[0], self.params)
        for number, prompt in enumerate(missing):
            report(name, number, len(missing))
            self.records.add(bench.record(prompt, self.params))
        report(name, 1, 1)
        for batch_size in self.batch_sizes:
            if batch_size not in timed:
                self._time(bench, batch_size)

    def _workbench(self, candidate: Candidate) -> Workbench:
        policy, config = SetLength(), candidate.setting(candidate.longest).config
        batch = max(self.batch_sizes)
        engine = self.workshop.engine(config, self.prepared, self.params, batch, policy)
        return Workbench(engine, policy, candidate)

    def _time(self, bench: Workbench, batch_size: int) -> None:
        """Time some prompts in turns, for so many seconds, each once at least."""
        step = max(1, len(self.prepared.prompts) // TIMED_PROMPTS)
        prompts, found = self.prepared.prompts[::step][:TIMED_PROMPTS], []
        started, most = perf_counter(), int(self.seconds)
        for turn in range(MOST_TURNS):
            found += [bench.time(prompt, self.params, batch_size, turn) for prompt in prompts]
            spent = perf_counter() - started
            report(f"{bench.candidate.name}, times", min(int(spent), most), most + 1)
            if spent >= self.seconds:
                break
        # At once: half of them would be taken for all of them.
        self.records.add(*found)

    def _default(self) -> Setting:
        return Setting(DEFAULT, choose(SpeculativeConfig(), self.model).config)

    def _run(self, settings: Sequence[Setting], batch_size: int) -> None:
        """Run settings beside plain decoding on all prompts, as `forerun bench` does."""
        prepared, params = self.prepared, self.params
        plain = self.workshop.engine(False, prepared, params, batch_size)
        with self.workshop.drafting(settings, prepared, params, batch_size) as contestants:
            session = BenchSession(
                plain,
                contestants,
                prepared.prompts,
                params,
                (params.temperature,),
                (batch_size,),
                done=self.records.pairs,
            )
            for row in session.run():
                self.records.add(row)


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
