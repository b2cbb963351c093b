"""Measures each setting of the cache against the full one: perplexity, needles, memory and time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from forerun.bench.kv.reading import CacheReading, Score, TimedToken
from forerun.bench.kv.request import LONGEST_QUESTION, CacheSetting, KvRequest
from forerun.bench.kv.texts import Haystack, haystack
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.measure.intervals import mean
from forerun.progress import report

Load = Callable[..., Engine]


@dataclass(frozen=True)
class KvRow:
    """A setting at a context.

    Args:
        setting: its label.
        exactness: of the output.
        context: tokens of the prompt.
        perplexity: of the tokens behind the prompt.
        perplexity_ratio, perplexity_low, perplexity_high: over that with the full cache, with its 95 %
            interval over tokens.
        found: share of the needles whose whole answer greedy decoding gives.
        found_by_depth: the same by depth.
        answer_probability: of a token of the answers, geometric mean.
        memory_bytes, memory_share: of the keys and values that are held when the timed tokens have been run,
            and that over the full cache's.
        read_seconds: of the prompt, with the eviction behind it.
        tokens_per_second: of single forwards, evictions included.
        speed_ratio: that over the full cache's, run in turns.
    """

    setting: str
    exactness: str
    context: int
    perplexity: float
    perplexity_ratio: float
    perplexity_low: float
    perplexity_high: float
    found: float
    found_by_depth: Mapping[str, float]
    answer_probability: float
    memory_bytes: int
    memory_share: float
    read_seconds: float
    tokens_per_second: float
    speed_ratio: float


class KvEngines:
    """KvEngines by setting; those of settings that differ in what is evicted share a model.

    Args:
        load: loads an engine, given the arguments of a setting.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._made: dict[tuple[Any, ...], Engine] = {}

    def of(self, setting: CacheSetting) -> Engine:
        """The engine of a setting."""
        key = tuple(sorted(setting.model.items()))
        if key not in self._made:
            self._made[key] = self._load(**setting.model)
        engine = self._made[key]
        if not setting.compression.is_on:
            return engine
        return Engine(
            engine.target,
            tokenizer=engine.tokenizer,
            max_context=engine.max_context,
            compression=setting.compression,
        )


def measure(
    request: KvRequest, settings: Sequence[CacheSetting], engines: KvEngines, text: str
) -> Iterator[KvRow]:
    """All settings at all contexts; of each context the first setting is what others are compared with.

    Args:
        engines: of the settings.
        text: prose that is long enough.

    Raises:
        ConfigError: for a text that is too short, or needles that do not fit.
        UnsupportedModelError: for a model whose cache cannot evict.
    """
    first = engines.of(settings[0])
    stacks = _stacks(request, first, text)
    # What cannot run is refused before anything is measured.
    made = [engines.of(setting) for setting in settings]
    total, done = len(settings) * sum(request.contexts), 0
    for context, stack in zip(request.contexts, stacks, strict=True):
        base: _Reader | None = None
        for setting, engine in zip(settings, made, strict=True):
            report("tokens of prompts", done, total)
            reader = _Reader(request, setting, engine, stack, base)
            base = base or reader
            yield reader.row(base)
            done += context
    report("tokens of prompts", total, total)


def _stacks(request: KvRequest, engine: Engine, text: str) -> list[Haystack]:
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise ConfigError("the texts need a tokenizer; give a model that has one.")

    def encode(part: str) -> list[int]:
        return list(tokenizer.encode(part, add_special_tokens=False))

    # A token is a character at least.
    most = 8 * (max(request.contexts) + request.scored_tokens)
    prose_ids = encode(text[:most])
    return [
        haystack(
            encode,
            prose_ids,
            context,
            request.scored_tokens,
            request.depths,
            request.needles,
            request.seed,
        )
        for context in request.contexts
    ]


class _Reader:
    """Measurements of a setting at one context."""

    def __init__(
        self,
        request: KvRequest,
        setting: CacheSetting,
        engine: Engine,
        stack: Haystack,
        base: _Reader | None,
    ) -> None:
        self.setting, self.engine, self.stack = setting, engine, stack
        capacity = len(stack.token_ids) + max(request.scored_tokens, LONGEST_QUESTION)
        self.reading = CacheReading(engine.target, engine.compression, capacity)
        started = perf_counter()
        self.reading.read(stack.token_ids)
        self.read_seconds = perf_counter() - started
        self.answers = [self._ask(needle.question, needle.answer) for needle in stack.needles]
        timed, rest = stack.rest[: request.timed_tokens], stack.rest[request.timed_tokens :]
        with self.reading.branch() as going:
            pairs = list(self._in_turns(going, timed, base))
            self.nbytes = going.nbytes
            scores = [own.score for own, _ in pairs]
            if rest:
                scores.append(going.score(rest))
        self.nll = torch.cat([score.nll for score in scores]).numpy()
        steps = [own for own, _ in pairs]
        # The first eviction is the prompt's.
        self.read_seconds += steps[0].evicting
        later = [step.evicting for step in steps[1:]]
        forward = statistics.median(step.running for step in steps)
        self.seconds = forward + (sum(later) / len(later) if later else 0.0)
        self.base_seconds = statistics.median(full.running for _, full in pairs)

    def _ask(self, question: list[int], answer: list[int]) -> Score:
        with self.reading.branch() as asked:
            asked.read(question)
            return asked.score(answer)

    @staticmethod
    def _in_turns(
        going: CacheReading, tokens: Sequence[int], base: _Reader | None
    ) -> Iterator[tuple[TimedToken, TimedToken]]:
        """Tokens run one by one, in turns with the full cache."""
        if base is None:
            for token in tokens:
                step = going.step(token)
                yield step, step
            return
        with base.reading.branch() as full:
            for token in tokens:
                yield going.step(token), full.step(token)

    def row(self, base: _Reader) -> KvRow:
        """The figures, against those of the full cache."""
        apart = mean(self.nll - base.nll)
        hits = [float(score.hits.all()) for score in self.answers]
        depths: dict[str, list[float]] = {}
        for needle, hit in zip(self.stack.needles, hits, strict=True):
            depths.setdefault(f"{needle.depth:g}", []).append(hit)
        return KvRow(
            setting=self.setting.label,
            exactness=str(self.engine.exactness),
            context=len(self.stack.token_ids),
            perplexity=float(np.exp(self.nll.mean())),
            perplexity_ratio=float(np.exp(apart.value)),
            perplexity_low=float(np.exp(apart.low)),
            perplexity_high=float(np.exp(apart.high)),
            found=statistics.fmean(hits),
            found_by_depth={depth: statistics.fmean(some) for depth, some in depths.items()},
            answer_probability=float(torch.cat([s.nll for s in self.answers]).mean().neg().exp()),
            memory_bytes=self.nbytes,
            memory_share=self.nbytes / base.nbytes,
            read_seconds=self.read_seconds,
            tokens_per_second=1.0 / self.seconds,
            speed_ratio=self.base_seconds / self.seconds,
        )
