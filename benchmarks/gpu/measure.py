"""`measure`: decoding on torch, plainly and with drafts, beside transformers, a row for each figure.

Tasks run in the order of their importance until the seconds are over; the last row says what was left out.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import torch

import forerun
from benchmarks.gpu.output import Output
from benchmarks.gpu.subjects import SMOLLM2, Subject, freeing, subjects
from benchmarks.gpu.timing import bandwidth, forwards, profiled, synchronize
from forerun.contracts import CausalLM, Drafter, DrafterSetup
from forerun.drafters import DRAFTERS
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.parts import TimedRound
from forerun.errors import ConfigError, ForerunError
from forerun.measure.attribution import first_difference
from forerun.params import SamplingParams
from forerun.placement import resolve_device

PLAIN = "plain"
NUM_SPECULATIVE_TOKENS = 4
# The context of forwards, and tokens of a request's prompt and output.
CONTEXT, MOST_CONTEXT = 256, 1024
# What a task should not begin with less than.
LEAST_SECONDS = 2.0


def measure(options: argparse.Namespace, output: Output) -> int:
    """Measure until all is measured or the time is over; 1 where speculation changed greedy text."""
    device = resolve_device(options.device or ("cpu" if options.tiny else "cuda"))
    if options.tiny:
        torch.set_num_threads(1)
    tokens, repeats = (12, 2) if options.tiny else (128, 15)
    bench = Bench(device, output, tokens, repeats)
    left: list[str] = ["all"]
    with output.deadline(left):
        _environment(device, output)
        bench.rate = bandwidth(device, 1 << (22 if options.tiny else 31))
        output.row("bandwidth", gb_a_second=round(bench.rate / 1e9, 1), counts="read and written")
        models = subjects(options, device, output)
        tasks = [(name, run) for name, run in _tasks(bench, models) if options.only in name]
        left[:] = [name for name, _ in tasks]
        for name, run in tasks:
            if output.left < LEAST_SECONDS:
                break
            output.defects += _attempt(name, run, output)
            left.remove(name)
        output.row("ended", by="time" if left else "work", left_out=left, defects=output.defects)
    return 1 if output.defects or not output.fits() else 0


Task = tuple[str, Callable[[], int]]
"""A name, and what measures and returns the number of defects."""


def _tasks(bench: Bench, all_subjects: list[Subject]) -> Iterator[Task]:
    for subject in all_subjects:
        yield f"{subject.name} forwards", partial(bench.forwards, subject)
        yield f"{subject.name} decode plain", partial(bench.decode, subject, PLAIN)
        yield f"{subject.name} profile plain", partial(bench.profile, subject, PLAIN)
        methods = ["ngram", "token_recycling"] if subject.name == SMOLLM2 else ["ngram"]
        for method in methods:
            yield f"{subject.name} decode {method}", partial(bench.decode, subject, method)
        yield f"{subject.name} profile ngram", partial(bench.profile, subject, "ngram")
    for subject in all_subjects:
        yield f"{subject.name} transformers", partial(bench.transformers, subject)


def _attempt(name: str, run: Callable[[], int], output: Output) -> int:
    """Run a task; one that fails is a row, and the others go on."""
    try:
        return run()
    except (ForerunError, RuntimeError, MemoryError) as error:
        output.row("failed", task=name, why=f"{type(error).__name__}: {error}"[:400])
        return 1


def _environment(device: torch.device, output: Output) -> None:
    import transformers

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    output.row(
        "environment",
        device=str(device),
        name=name,
        forerun=forerun.__version__,
        torch=torch.__version__,
        transformers=transformers.__version__,
        python=platform.python_version(),
    )


class Bench:
    """Measures models on a device, one at a time in its memory.

    Args:
        device: where.
        output: takes the rows.
        tokens: of an output.
        repeats: of a forward that is timed.
    """

    def __init__(self, device: torch.device, output: Output, tokens: int, repeats: int) -> None:
        self.device, self.output, self.tokens, self.repeats = device, output, tokens, repeats
        self.rate = 0.0
        self._held: tuple[str, CausalLM] | None = None
        self._round_ms: dict[tuple[str, str], float] = {}
        self._plain: dict[str, list[tuple[int, ...]]] = {}

    def target(self, subject: Subject) -> CausalLM:
        """The model of a subject; that of another one is dropped first."""
        if self._held is None or self._held[0] != subject.name:
            self.drop()
            self._held = subject.name, subject.build()
        return self._held[1]

    def drop(self) -> None:
        """Free the memory of the model."""
        with freeing(self.device):
            self._held = None

    def forwards(self, subject: Subject) -> int:
        """Milliseconds of a forward by its new tokens, and the memory's bandwidth that it reaches."""
        timed = forwards(self.target(subject), CONTEXT, repeats=self.repeats)
        self.output.row(
            "forwards",
            model=subject.name,
            context=timed.context,
            ms={count: round(ms, 4) for count, ms in timed.ms.items()},
            queued_ms={count: round(ms, 4) for count, ms in timed.queued_ms.items()},
            gb_read=round(timed.bytes_read / 1e9, 4),
            share_of_bandwidth=self._share(timed.bytes_read, timed.ms[1]),
            queued_share_of_bandwidth=self._share(timed.bytes_read, timed.queued_ms[1]),
        )
        return 0

    def _share(self, num_bytes: float, ms: float) -> float:
        return round(num_bytes / (1e-3 * ms) / self.rate, 4)

    def decode(self, subject: Subject, method: str) -> int:
        """Tokens a second, rounds by stage, and whether the text is plain decoding's up to near-ties."""
        engine, rounds = self._engine(subject, method)
        outputs, seconds = [], 0.0
        for prompt in subject.prompts:
            completion, spent = self._generate(engine, prompt, method)
            outputs.append(completion)
            seconds += spent
        total = sum(map(len, outputs))
        times = {
            name: round(1e3 * sum(getattr(r.times, name) for r in rounds) / len(rounds), 4)
            for name in ("draft", "target", "verify", "total")
        }
        self._round_ms[subject.name, method] = times["total"]
        equal, defects = self._compare(engine, subject, method, outputs)
        self.output.row(
            "decode",
            model=subject.name,
            method=method,
            tokens=total,
            tokens_a_second=round(total / seconds, 2),
            rounds=len(rounds),
            tokens_a_round=round(total / len(rounds), 3),
            ms_a_round=times,
            **equal,
        )
        return defects

    def _engine(self, subject: Subject, method: str) -> tuple[Engine, list[TimedRound]]:
        """A warm engine, and the list that it writes its rounds to."""
        target = self.target(subject)
        context = min(MOST_CONTEXT, target.max_context)
        drafter = None if method == PLAIN else _drafter(method, target, context)
        config = SpeculativeConfig(num_speculative_tokens=NUM_SPECULATIVE_TOKENS, policy="fixed")
        engine = Engine(target, drafter, config, max_context=context, prefix_reuse=False)
        rounds: list[TimedRound] = []
        self._generate(engine, subject.prompts[0], method)
        engine.watch_rounds(rounds.append)
        return engine, rounds

    def _generate(
        self, engine: Engine, prompt: tuple[int, ...], method: str
    ) -> tuple[tuple[int, ...], float]:
        params = SamplingParams(temperature=0.0, max_tokens=self.tokens, ignore_eos=True)
        synchronize(self.device)
        started = perf_counter()
        completion = engine.generate(list(prompt), params, speculative=method != PLAIN)
        synchronize(self.device)
        return completion.token_ids, perf_counter() - started

    def _compare(
        self, engine: Engine, subject: Subject, method: str, outputs: list[tuple[int, ...]]
    ) -> tuple[dict[str, Any], int]:
        """A comparison with plain decoding, and the number of outputs that rounding does not explain."""
        if method == PLAIN:
            self._plain[subject.name] = outputs
            return {}, 0
        if subject.name not in self._plain:
            return {"equal": "plain decoding was not run"}, 0
        params = SamplingParams(temperature=0.0, max_tokens=self.tokens)
        differences = [
            first_difference(engine.target, None, prompt, ours, plain, params)
            for prompt, ours, plain in zip(
                subject.prompts, outputs, self._plain[subject.name], strict=True
            )
        ]
        different = [difference.explanation for difference in differences if difference is not None]
        equal = f"{len(differences) - len(different)} of {len(differences)}"
        return {"equal": equal, "differences": different}, different.count("defect")

    def profile(self, subject: Subject, method: str) -> int:
        """Launches and the device's busy time a round, what is left to the host, and the top operations."""
        engine, rounds = self._engine(subject, method)

        def run() -> int:
            self._generate(engine, subject.prompts[0], method)
            return len(rounds)

        profile = profiled(run, self.device)
        # That of a round without the profiler, which slows the host.
        ms = self._round_ms.get((subject.name, method))
        apart = ms is not None and self.device.type == "cuda"
        host = round(ms - profile["busy_ms_a_round"], 4) if apart else None
        self.output.row(
            "profile",
            model=subject.name,
            method=method,
            ms_a_round=ms,
            host_ms_a_round=host,
            **profile,
        )
        return 0

    def transformers(self, subject: Subject) -> int:
        """Tokens a second of transformers' generate, plainly and with its prompt lookup."""
        self.drop()
        model = subject.theirs().eval()
        model.generation_config.eos_token_id = None
        lookup = {"prompt_lookup_num_tokens": NUM_SPECULATIVE_TOKENS}
        for method, more in ((PLAIN, {}), ("prompt_lookup", lookup)):
            self._their_generate(model, subject.prompts[0], more)
            made = [self._their_generate(model, prompt, more) for prompt in subject.prompts]
            total, seconds = (sum(column) for column in zip(*made, strict=True))
            self.output.row(
                "transformers",
                model=subject.name,
                method=method,
                tokens=total,
                tokens_a_second=round(total / seconds, 2),
            )
        with freeing(self.device):
            del model
        return 0

    def _their_generate(
        self, model: Any, prompt: tuple[int, ...], more: dict[str, Any]
    ) -> tuple[int, float]:
        """Tokens that transformers generates, and the seconds that it takes."""
        ids = torch.tensor([prompt], device=self.device)
        synchronize(self.device)
        started = perf_counter()
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self.tokens,
            pad_token_id=0,
            **more,
        )
        synchronize(self.device)
        return made.shape[1] - ids.shape[1], perf_counter() - started


def _drafter(method: str, target: CausalLM, context: int) -> Drafter:
    def no_model() -> CausalLM:
        raise ConfigError(f"{method} needs a draft model, which the kit does not load.")

    setup = DrafterSetup(target, 1, context, {}, no_model)
    drafter: Drafter = DRAFTERS.find(method).build(setup)
    return drafter
