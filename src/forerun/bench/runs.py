"""Runs: requests decoded side by side, with the seconds at which their tokens came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from forerun.core import Hints, Stats
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion
from forerun.measure.paired import alone, empty_caches
from forerun.params import SamplingParams


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
        seconds: time until the last token of all.
    """

    completions: tuple[Completion, ...]
    arrivals: tuple[tuple[float, ...], ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens that were emitted, by their ids."""
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def stats(self) -> Stats:
        """Counters of all requests."""
        return Stats.total(completion.stats for completion in self.completions)


def run_drafting(
    engine: Engine,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    speculative: bool = True,
) -> Timed:
    """Decode prompts at once from empty caches, in rounds; those of an interrupted run are cancelled.

    Each has a namespace of its own: what a drafter remembers of another run would help this one.

    Args:
        speculative: False decodes plainly, in rounds without drafts.

    Raises:
        Exception: that ended a request.
    """
    empty_caches(engine)
    started = perf_counter()
    arrivals: dict[int, list[float]] = {}
    for prompt in prompts:
        hints = alone(Hints(prompt.prediction))
        number = engine.add(prompt.token_ids, params, speculative=speculative, hints=hints)
        arrivals[number] = []
    try:
        while engine.has_work:
            events = engine.step()
            now = perf_counter() - started
            for number in {event.request_id for event in events}:
                arrivals[number].append(now)
    except BaseException:
        for number in arrivals:
            engine.cancel(number)
        raise
    seconds = perf_counter() - started
    completions = tuple(map(engine.completion, arrivals))
    for completion in completions:
        if completion.error is not None:
            raise completion.error
    return Timed(completions, tuple(map(tuple, arrivals.values())), seconds)


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
    return Timed((stream.completion,), (tuple(arrivals),), seconds)


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
