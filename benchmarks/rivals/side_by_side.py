"""Requests that an engine decodes at once, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from forerun.bench.runs import EncodedPrompt
from forerun.core import Hints
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion, TokenEvent
from forerun.measure.paired import alone, empty_caches
from forerun.params import SamplingParams


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
