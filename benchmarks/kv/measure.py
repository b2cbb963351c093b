"""Measures each setting of the cache against the full one: perplexity, needles, memory and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.kv.reading import CacheReading, Score
from benchmarks.kv.request import LONGEST_QUESTION, CacheSetting, KvRequest
from benchmarks.kv.texts import Haystack, haystack
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.measure.intervals import mean
from forerun.progress import report

Row = Mapping[str, Any]
"""Figures of a setting at a context, by name:

setting, exactness, context: its label, of the output, tokens of the prompt.
perplexity: of the tokens behind the prompt.
perplexity_ratio, perplexity_low, perplexity_high: over that with the full cache, with its 95 % interval.
found, found_by_depth: share of the needles whose whole answer greedy decoding gives.
answer_probability: of a token of the answers, geometric mean.
memory_bytes, memory_share: keys and values that are held when the timed tokens have been run, and that over
    the full cache's.
read_seconds: of the prompt, with the eviction behind it.
tokens_per_second, speed_ratio: of single forwards, evictions included, and that over the full cache's, run in
    turns.
"""


def measure(
    request: KvRequest, settings: Sequence[CacheSetting], engines: Sequence[Engine], text: str
) -> Iterator[Row]:
    """All settings at all contexts; of each context the first setting is what others are compared with.

    Args:
        engines: of the settings.
        text: prose that is long enough.

    Raises:
        ConfigError: for a text that is too short, or needles that do not fit.
        UnsupportedModelError: for a model whose cache cannot evict.
    """
    stacks = _stacks(request, engines[0], text)
    total, done = len(settings) * sum(request.contexts), 0
    for context, stack in zip(request.contexts, stacks, strict=True):
        full: _Run | None = None
        for setting, engine in zip(settings, engines, strict=True):
            report("tokens of prompts", done, total)
            run = _Run(request, engine, stack, full)
            full = full or run
            named = {"setting": setting.label, "exactness": str(engine.exactness)}
            yield {**named, "context": context, **run.figures(full)}
            done += context
    report("tokens of prompts", total, total)


def _stacks(request: KvRequest, engine: Engine, text: str) -> list[Haystack]:
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise ConfigError("the texts need a tokenizer; give a model that has one.")

    def encode(part: str) -> list[int]:
        return list(tokenizer.encode(part, add_special_tokens=False))

    # A token is a character at least.
    prose_ids = encode(text[: 8 * (max(request.contexts) + request.scored_tokens)])
    return [haystack(request, encode, prose_ids, context) for context in request.contexts]


class _Run:
    """A prompt read by an engine, the questions answered, and the text behind it scored."""

    def __init__(
        self, request: KvRequest, engine: Engine, stack: Haystack, full: _Run | None
    ) -> None:
        self.stack = stack
        capacity = len(stack.token_ids) + max(request.scored_tokens, LONGEST_QUESTION)
        self.reading = CacheReading(engine.target, engine.compression, capacity)
        started = perf_counter()
        self.reading.read(stack.token_ids)
        self.read_seconds = perf_counter() - started
        self.answers = [self._ask(needle.question, needle.answer) for needle in stack.needles]
        timed, rest = stack.rest[: request.timed_tokens], stack.rest[request.timed_tokens :]
        with self.reading.branch() as going, (full or self).reading.branch() as beside:
            # Tokens run one by one, in turns with the full cache.
            steps = []
            for token in timed:
                step = going.step(token)
                steps.append((step, step if full is None else beside.step(token)))
            self.nbytes = going.nbytes
            scores = [step.score for step, _ in steps]
            scores += [going.score(rest)] if rest else []
        self.nll = torch.cat([score.nll for score in scores]).numpy()
        evicting = [step.evicting for step, _ in steps]
        # The first eviction is the prompt's.
        self.read_seconds += evicting[0]
        later = fmean(evicting[1:]) if evicting[1:] else 0.0
        self.seconds = median(step.running for step, _ in steps) + later
        self.full_seconds = median(step.running for _, step in steps)

    def _ask(self, question: list[int], answer: list[int]) -> Score:
        with self.reading.branch() as asked:
            asked.read(question)
            return asked.score(answer)

    def figures(self, full: _Run) -> dict[str, Any]:
        """The figures of the row, against those of the full cache."""
        apart = mean(self.nll - full.nll)
        hits = [float(score.hits.all()) for score in self.answers]
        depths: dict[str, list[float]] = {}
        for needle, hit in zip(self.stack.needles, hits, strict=True):
            depths.setdefault(f"{needle.depth:g}", []).append(hit)
        return {
            "perplexity": float(np.exp(self.nll.mean())),
            "perplexity_ratio": float(np.exp(apart.value)),
            "perplexity_low": float(np.exp(apart.low)),
            "perplexity_high": float(np.exp(apart.high)),
            "found": fmean(hits),
            "found_by_depth": {depth: fmean(share) for depth, share in depths.items()},
            "answer_probability": float(
                torch.cat([score.nll for score in self.answers]).mean().neg().exp()
            ),
            "memory_bytes": self.nbytes,
            "memory_share": self.nbytes / full.nbytes,
            "read_seconds": self.read_seconds,
            "tokens_per_second": 1.0 / self.seconds,
            "speed_ratio": self.full_seconds / self.seconds,
        }
