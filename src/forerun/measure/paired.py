"""Speculative and plain decoding side by side: whether the text is the same, and the speed-up."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from forerun.contracts import Policy
from forerun.core import NO_HINTS, Hints
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion, TokenEvent
from forerun.engine.stream import Stream
from forerun.measure.attribution import Difference, first_difference
from forerun.measure.turns import at_length
from forerun.params import SamplingParams
from forerun.policies.decisions import since
from forerun.policies.fixed import FixedPolicy
from forerun.progress import report

WARM_UP_TOKENS = 16
_RUNS = itertools.count()


@dataclass
class Run:
    """One request and the seconds until its last token, prefill included, output apart.

    Args:
        stream: the request.
        policy: the engine's, whose decisions for this request are kept.
    """

    stream: Stream
    policy: Policy | None = None
    events: list[TokenEvent] = field(default_factory=list)
    seconds: float = 0.0
    decisions: dict[str, dict[str, float]] | None = None

    def follow(self, see: Callable[[TokenEvent], None] | None = None) -> Run:
        """Run it to its end; if that is interrupted it is closed, and its events so far remain."""
        before = self._report()
        try:
            started = perf_counter()
            for event in self.stream:
                self.seconds += perf_counter() - started
                self.events.append(event)
                if see is not None:
                    see(event)
                started = perf_counter()
        finally:
            self.stream.close()
            self.decisions = since(self._report(), before)
        return self

    def _report(self) -> dict[str, Any] | None:
        return None if self.policy is None else self.policy.report()

    @property
    def completion(self) -> Completion:
        return self.stream.completion

    @property
    def tokens_per_second(self) -> float | None:
        return len(self.events) / self.seconds if self.seconds else None

    def seconds_for(self, tokens: int) -> float:
        """Seconds of an output of `tokens` tokens at this run's speed."""
        prefill = self.completion.stats.prefill_seconds
        return at_length(self.seconds, prefill, len(self.events), tokens)


@dataclass(frozen=True)
class Pair:
    """A speculative run and the plain one after it."""

    speculative: Run
    plain: Run

    @property
    def speedup(self) -> float:
        """Plain seconds over speculative ones, for an output as long as the shorter one."""
        tokens = min(len(self.plain.events), len(self.speculative.events))
        seconds = self.speculative.seconds_for(tokens)
        return self.plain.seconds_for(tokens) / seconds if seconds else 0.0

    @property
    def decode_speedup(self) -> float:
        """Ratio of tokens per second without prefill."""
        rates = [run.completion.stats.tokens_per_second for run in (self.speculative, self.plain)]
        return (rates[0] or 0.0) / (rates[1] or 1.0)

    @property
    def identical(self) -> bool:
        return self.speculative.completion.token_ids == self.plain.completion.token_ids


@dataclass(frozen=True)
class Comparison:
    """All pairs of a comparison, and the result.

    Args:
        pairs: in the order in which they ran.
        identical: whether both sides emitted the same tokens in every pair; None where sampling
            without a shared seed makes that meaningless.
        difference: the first one, where they did not.
    """

    pairs: list[Pair]
    identical: bool | None
    difference: Difference | None = None

    @property
    def shown(self) -> Pair:
        """The first pair that differs, else the one nearest to the median speed-up."""
        if self.identical is False:
            return next(pair for pair in self.pairs if not pair.identical)
        return min(self.pairs, key=lambda pair: abs(pair.speedup - self.speedup))

    @property
    def speedup(self) -> float:
        """The median of the pairs' ratios."""
        return statistics.median(pair.speedup for pair in self.pairs)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the largest of the pairs' ratios."""
        ratios = [pair.speedup for pair in self.pairs]
        return min(ratios), max(ratios)

    @property
    def decode_speedup(self) -> float:
        """The median of the pairs' ratios without prefill."""
        return statistics.median(pair.decode_speedup for pair in self.pairs)


def compare(
    engine: Engine,
    prompt_ids: list[int],
    params: SamplingParams,
    rounds: int,
    *,
    hints: Hints = NO_HINTS,
) -> Comparison:
    """Warm up both sides, then run them in turn: other work on the machine then affects both alike.

    Args:
        engine: with a drafter.
        prompt_ids: the prompt.
        params: of both sides.
        rounds: pairs to run.
        hints: of the speculative side.
    """
    short = replace(params, max_tokens=min(params.max_tokens or WARM_UP_TOKENS, WARM_UP_TOKENS))
    with warming_up(engine):
        _run(engine, engine.stream(prompt_ids, short, hints=alone(hints)))
    _run(engine, engine.stream_plain(prompt_ids, short))
    pairs = []
    for number in range(rounds):
        report("comparing", number, rounds)
        pairs.append(run_pair(engine, prompt_ids, params, hints))
    report("comparing", rounds, rounds)
    return comparison_of(engine, prompt_ids, params, pairs)


def run_pair(
    engine: Engine,
    prompt_ids: list[int],
    params: SamplingParams,
    hints: Hints = NO_HINTS,
    see: Callable[[TokenEvent], None] | None = None,
) -> Pair:
    """One run of each side, without any warm-up; `see` is called with each token of the speculative one as
    it comes."""
    speculative = engine.stream(prompt_ids, params, hints=alone(hints))
    plain = engine.stream_plain(prompt_ids, params)
    return Pair(_run(engine, speculative, see), _run(engine, plain))


def _run(engine: Engine, stream: Stream, see: Callable[[TokenEvent], None] | None = None) -> Run:
    """One run from empty caches: what an earlier one has left would spare this one its prefill."""
    empty_caches(engine)
    return Run(stream, engine.policy).follow(see)


def deterministic(params: SamplingParams, config: SpeculativeConfig) -> bool:
    """True if both sides must emit the same tokens rather than the same distribution."""
    coupled = params.seed is not None and config.rejection_sample_method in ("auto", "coupled")
    return params.greedy or coupled


def empty_caches(engine: Engine) -> None:
    """Empty an engine's caches, its drafter's too."""
    with engine.idle_cache():
        pass


@contextmanager
def warming_up(engine: Engine) -> Iterator[None]:
    """Context of warm-up rounds, from which the engine's policy learns nothing: what follows is what a
    user gets. Policy `fixed`, which never learns, warms up the lengths that it drafts."""
    if isinstance(engine.policy, FixedPolicy):
        yield
        return
    with engine.untaught():
        yield


def alone(hints: Hints = NO_HINTS) -> Hints:
    """Hints in a namespace that no run has used: a drafter that remembers the last run of the same
    prompt would look better than it is."""
    return replace(hints, namespace=f"{hints.namespace} run {next(_RUNS)}")


def comparison_of(
    engine: Engine, prompt_ids: list[int], params: SamplingParams, pairs: list[Pair]
) -> Comparison:
    """The comparison of finished pairs of one prompt."""
    if not deterministic(params, engine.config):
        return Comparison(pairs, None)
    differing = next((pair for pair in pairs if not pair.identical), None)
    if differing is None:
        return Comparison(pairs, True)
    difference = first_difference(
        engine.target,
        engine.tokenizer,
        prompt_ids,
        differing.speculative.completion.token_ids,
        differing.plain.completion.token_ids,
        params,
    )
    return Comparison(pairs, False, difference)
