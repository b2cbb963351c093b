"""Runs: requests decoded side by side, with the seconds at which their tokens came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

from forerun.core import Hints, Stats
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion, TokenEvent
from forerun.measure.paired import alone, empty_caches
from forerun.params import SamplingParams

# A pause in a stream longer than this, in seconds and in usual pauses of the same run, is not the engine's:
# the process was stopped, the machine slept, or its clock jumped.
LONGEST_PAUSE, LONGER_THAN_USUAL = 1.0, 100.0


@dataclass(frozen=True)
class EncodedPrompt:
    """One request of a workload.

    Args:
        prompt_id: unique in its category.
        category: of the workload.
        token_ids: as the model gets them.
        prediction: an expected output, for drafters that read one.
    """

    prompt_id: str
    category: str
    token_ids: tuple[int, ...]
    prediction: str = ""


@dataclass(frozen=True)
class Timed:
    """A run of some requests at once.

    Args:
        completions: the outputs, in the order of the prompts.
        arrivals: seconds since the start at which tokens came, for each request.
        bursts: number of tokens that came at each arrival, for each request.
        seconds: time until the last token of all.
    """

    completions: tuple[Completion, ...]
    arrivals: tuple[tuple[float, ...], ...]
    bursts: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens that were emitted, by their ids."""
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def stats(self) -> Stats:
        """Counters of all requests."""
        return Stats.total(completion.stats for completion in self.completions)

    @property
    def disturbed(self) -> str | None:
        """Sign that these times are not those of the work, in words; None without one."""
        pauses = [
            later - sooner for arrivals in self.arrivals for sooner, later in pairwise(arrivals)
        ]
        if self.seconds <= 0 or any(pause < 0 for pause in pauses):
            return "the clock went backwards"
        if not pauses:
            return None
        usual = sorted(pauses)[len(pauses) // 2]
        if max(pauses) > max(LONGEST_PAUSE, LONGER_THAN_USUAL * usual):
            return f"a pause of {max(pauses):.1f} s between two tokens"
        return None


@dataclass(frozen=True)
class Step:
    """One step of an engine: its events, its seconds, and those that went into prompts."""

    events: list[TokenEvent]
    seconds: float
    prefill: float


class SideBySide:
    """Requests that an engine decodes at once, from empty caches.

    Each has a namespace of its own: what a drafter remembers of another run would help this one.

    Args:
        engine: that decodes them.
        prompts: one a request.
        params: of all requests.
        speculative: False decodes plainly, in rounds without drafts.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[EncodedPrompt],
        params: SamplingParams,
        speculative: bool = True,
    ) -> None:
        empty_caches(engine)
        self.engine, self.started = engine, perf_counter()
        self.numbers = [
            engine.add(
                prompt.token_ids,
                params,
                speculative=speculative,
                hints=alone(Hints(prompt.prediction)),
            )
            for prompt in prompts
        ]

    def steps(self) -> Iterator[Step]:
        """The steps until all requests have ended; those of an interrupted run are cancelled."""
        engine = self.engine
        try:
            while engine.has_work:
                before, started = engine.stats.prefill_seconds, perf_counter()
                events = engine.step()
                seconds = perf_counter() - started
                yield Step(events, seconds, engine.stats.prefill_seconds - before)
        except BaseException:
            for number in self.numbers:
                engine.cancel(number)
            raise

    def completions(self) -> tuple[Completion, ...]:
        """The outputs, in the order of the prompts.

        Raises:
            Exception: that ended a request.
        """
        completions = tuple(map(self.engine.completion, self.numbers))
        for completion in completions:
            if completion.error is not None:
                raise completion.error
        return completions


def run_drafting(
    engine: Engine,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    speculative: bool = True,
) -> Timed:
    """Decode prompts at once from empty caches, in rounds."""
    requests = SideBySide(engine, prompts, params, speculative)
    arrivals: dict[int, list[float]] = {number: [] for number in requests.numbers}
    bursts: dict[int, list[int]] = {number: [] for number in requests.numbers}
    for step in requests.steps():
        now = perf_counter() - requests.started
        for number, count in Counter(event.request_id for event in step.events).items():
            arrivals[number].append(now)
            bursts[number].append(count)
    seconds = perf_counter() - requests.started
    return Timed(
        requests.completions(),
        tuple(map(tuple, arrivals.values())),
        tuple(map(tuple, bursts.values())),
        seconds,
    )


def run_plain(engine: Engine, prompts: Sequence[EncodedPrompt], params: SamplingParams) -> Timed:
    """Decode prompts without any drafter: one by the plain loop, several at once in rounds."""
    if len(prompts) > 1:
        return run_drafting(engine, prompts, params, speculative=False)
    empty_caches(engine)
    arrivals = []
    started = perf_counter()
    stream = engine.stream_plain(prompts[0].token_ids, params)
    for _ in stream:
        arrivals.append(perf_counter() - started)
    seconds = perf_counter() - started
    return Timed((stream.completion,), (tuple(arrivals),), ((1,) * len(arrivals),), seconds)


def nearly(text: str) -> str:
    """A text with one line in ten changed: what an expected output may look like."""
    lines = text.splitlines(keepends=True)
    return "".join(f"# {line}" if number % 10 == 9 else line for number, line in enumerate(lines))


def predicted(engine: Engine, prompt: EncodedPrompt, params: SamplingParams) -> EncodedPrompt:
    """A prompt with a prediction: plain greedy decoding's own output with one line in ten changed."""
    greedy = replace(params, temperature=0.0, seed=None)
    return replace(
        prompt, prediction=nearly(run_plain(engine, [prompt], greedy).completions[0].text)
    )
