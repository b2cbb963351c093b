"""Recordings of what drafters propose at every position of some outputs, and the times of their rounds.

python -m benchmarks.rivals.record -m smollm2 --prompts chat.jsonl --output chat-rounds.jsonl

`python -m benchmarks.rivals` replays policies on them. What a file holds already is not measured again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from benchmarks.rivals.records import Records
from benchmarks.rivals.steering import SetLength
from benchmarks.rivals.workbench import Workbench
from forerun.bench.contestants import Workshop
from forerun.bench.runs import Prepared
from forerun.engine.config import SpeculativeConfig
from forerun.measure.questions import in_turns, read_questions
from forerun.models import Checkpoint
from forerun.models.checkpoint import loading_once
from forerun.params import SamplingParams
from forerun.report.machine import hardware, versions

# Prompts that rounds are timed on, and how often each at most.
TIMED_PROMPTS, MOST_TURNS = 6, 200


@dataclass(frozen=True)
class Recorder:
    """Measurements of methods on prompts, kept in records that grow.

    Args:
        seconds: time spent on timing a method.
    """

    workshop: Workshop
    prepared: Prepared
    params: SamplingParams
    records: Records
    longest: int = 8
    seconds: float = 6.0

    def measure(self, method: str) -> None:
        """Record a method on all prompts and time its rounds on some, where that was not done."""
        config = SpeculativeConfig(
            method=method, num_speculative_tokens=self.longest, policy="fixed"
        )
        policy = SetLength()
        engine = self.workshop.engine(config, self.prepared, self.params, 1, policy)
        bench = Workbench(engine, policy, method, self.longest)
        prompts = self.prepared.prompts
        bench.warm_up(prompts[0], self.params)
        for prompt in prompts:
            if (method, prompt.prompt_id) not in self.records.outputs:
                self.records.add(bench.record(prompt, self.params))
        if not any(key[0] == method for key in self.records.timings):
            self._time(bench)

    def _time(self, bench: Workbench) -> None:
        """Time some prompts in turns, for so many seconds, each once at least."""
        step = max(1, len(self.prepared.prompts) // TIMED_PROMPTS)
        prompts, timings = self.prepared.prompts[::step][:TIMED_PROMPTS], []
        started = perf_counter()
        for turn in range(MOST_TURNS):
            timings += [bench.time(prompt, self.params, turn=turn) for prompt in prompts]
            if perf_counter() - started >= self.seconds:
                break
        # At once: half of them would be taken for all of them.
        self.records.add(*timings)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals.record", description=__doc__)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", default=["ngram", "suffix", "eagle3"])
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--longest", type=int, default=8, help="tokens of a draft at most")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing a method")
    parser.add_argument("--output", required=True)
    options = parser.parse_args(arguments)
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
    questions = in_turns(read_questions(options.prompts))[: options.num_prompts]
    with loading_once():
        workshop = Workshop(Checkpoint.open(options.model), {})
        prepared = workshop.prepare(questions, params)
        plain = workshop.engine(False, prepared, params, 1)
        made_with = {
            "model": options.model,
            "sampling": asdict(params) | {"mask": None},
            "prompts": [prompt.prompt_id for prompt in prepared.prompts],
            "longest": options.longest,
            "versions": versions()["forerun"],
            "hardware": hardware(plain.target.device),
        }
        with Records.open(options.output, made_with) as records:
            recorder = Recorder(
                workshop, prepared, params, records, options.longest, options.seconds
            )
            for method in options.methods:
                recorder.measure(method)


if __name__ == "__main__":
    main()
