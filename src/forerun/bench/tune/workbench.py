"""Recording, timing and paired runs of one candidate in an engine of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any, cast

from forerun.bench.runs import EncodedPrompt
from forerun.bench.settings import DEFAULT
from forerun.bench.tune.contexts import Shares, shares_of
from forerun.bench.tune.records import Confirmed, PromptTiming, RecordedOutput, RoundTiming
from forerun.bench.tune.steering import FirstTokens, Noted, SetLength, Steered
from forerun.contracts import Drafter, Policy
from forerun.core import Drawing
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.parts import TimedRound
from forerun.measure.paired import alone, empty_caches
from forerun.measure.watching import watched_rules
from forerun.params import SamplingParams

# Lengths that are timed in turns, as far as a candidate drafts; 0 is a plain round.
LENGTHS = (4, 1, 0, 8, 2, 6, 3, 12, 5, 16, 24, 32, 64)
# Rounds of each side that run in turn.
CHUNK = 12
# Of a prompt, to time prefill with, and how often.
PREFILL_TOKENS, PREFILL_RUNS = 256, 3


@dataclass(frozen=True)
class Candidate:
    """A drafter that may be used.

    Args:
        method: its name, or DEFAULT for forerun's own choice, which can only be run.
        model: the draft model or head; None for the known one, or none.
        longest: tokens that are drafted along any path at most.
        tree_nodes: of an automatic tree; None drafts chains.
        options: of the method, by name.
    """

    method: str
    model: str | None = None
    longest: int = 8
    tree_nodes: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Name, unique among candidates."""
        own = [f"{name}={value}" for name, value in self.options]
        tree = [] if self.tree_nodes is None else [f"tree of {self.tree_nodes}"]
        model = [] if self.model is None else [str(self.model)]
        extra = ", ".join([*model, *own, *tree])
        return f"{self.method} ({extra})" if extra else self.method

    @property
    def config(self) -> SpeculativeConfig:
        """Configuration of an engine with it."""
        config = SpeculativeConfig(
            method=self.method,
            model=self.model,
            num_speculative_tokens=self.longest,
            policy="fixed",
            options=dict(self.options),
        )
        if self.tree_nodes is None:
            return config
        return replace(config, tree="auto", num_tree_nodes=self.tree_nodes)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths that it can be replayed at: a tree is not the beginning of a deeper one."""
        if self.tree_nodes is not None:
            return (self.longest,)
        return tuple(sorted(n for n in {*LENGTHS, self.longest} if 0 < n <= self.longest))


@dataclass(frozen=True)
class _Step:
    """Seconds and tokens of a step of an engine, and the round if all requests took part."""

    seconds: float
    tokens: int
    round: RoundTiming | None


class Workbench:
    """An engine whose policy is told its lengths.

    Args:
        engine: with a drafter.
        policy: the engine's.
        candidate: what drafts.
    """

    def __init__(self, engine: Engine, policy: SetLength, candidate: Candidate) -> None:
        self.engine, self.policy, self.candidate = engine, policy, candidate
        assert engine.drafter is not None, "a candidate drafts"
        self.drafter: Drafter = engine.drafter
        self._steered: Steered | None = None
        if candidate.method != DEFAULT and _is_lookup(self.drafter) and not candidate.tree_nodes:
            # Lookups often find little: the lengths between are timed all the same.
            self._steered = Steered(self.drafter)
            self.drafter = cast(Drafter, self._steered)
            self.engine = _like(engine, self.drafter, policy)
        self._rounds: deque[TimedRound] = deque(maxlen=1)
        self.engine.watch_times(self._rounds.append)
        self.plain = _like(engine)
        """Decodes plainly: the same target with a cache of its own."""

    @classmethod
    def load(cls, model: Any, candidate: Candidate, **options: Any) -> Workbench:
        """Load a model with a candidate.

        Raises:
            ForerunError: as `forerun.load` does.
        """
        policy = SetLength()
        if candidate.method == DEFAULT:
            # Its own policy decides; this one is not asked.
            return cls(load(model, True, **options), policy, candidate)
        return cls(load(model, candidate.config, policy=policy, **options), policy, candidate)

    def shares(self) -> Shares | None:
        """Costs of its drafts by context, where that matters."""
        return shares_of(self.drafter, self.candidate.name, self.engine.target.max_context)

    def record(self, prompt: EncodedPrompt, params: SamplingParams) -> RecordedOutput:
        """One output, with what would be accepted at each of its positions."""
        noted: list[Noted] = []
        confidences: list[float] = []
        self.policy.lengths, self.policy.asks = (self.candidate.longest,), self.drafter
        first = FirstTokens()
        with watched_rules(self.engine, first.see):
            if self._steered is not None:
                self._steered.accepted = lambda: first.notes[-1].accepted if first.notes else 0
            empty_caches(self.engine)
            stream = self.engine.stream(prompt.token_ids, params, hints=alone())
            for _ in stream:
                noted.append(first.take())
                confidences += self.policy.confidences
                self._rounds.clear()
        completion = stream.completion
        self.policy.asks = None
        if self._steered is not None:
            self._steered.accepted = None
        return RecordedOutput(
            candidate=self.candidate.name,
            prompt_id=prompt.prompt_id,
            category=prompt.category,
            prompt_ids=prompt.token_ids,
            token_ids=completion.token_ids,
            max_tokens=params.max_tokens or 0,
            nodes=tuple(note.nodes for note in noted),
            depths=tuple(note.depth for note in noted),
            accepted=tuple(note.accepted for note in noted),
            confidences=tuple(confidences),
            token_probs=_if_any([note.token_probs for note in noted]),
            prefill_seconds=completion.stats.prefill_seconds,
        )

    def time(
        self, prompt: EncodedPrompt, params: SamplingParams, batch_size: int = 1, turn: int = 0
    ) -> PromptTiming:
        """The rounds of one prompt with lengths in turns, beside plain ones."""
        longest = self.candidate.longest
        turns = tuple(n for n in LENGTHS if n <= longest)
        self.policy.lengths = turns if self.candidate.tree_nodes is None else (longest, 0)
        if self._steered is not None:
            self._steered.fills = True
        rounds: list[RoundTiming] = []
        plain: list[tuple[float, float]] = []
        beside = 0.0
        for ours, theirs in self._in_turns([prompt] * batch_size, params):
            now = [step.round for step in theirs if step.round is not None]
            plain += [(one.context, one.target) for one in now]
            beside = median(one.target for one in now) if now else beside
            rounds += [replace(s.round, beside=beside) for s in ours if s.round is not None]
        if self._steered is not None:
            self._steered.fills = False
        prefill, plain_prefill = self._time_prefill(prompt, params)
        return PromptTiming(
            candidate=self.candidate.name,
            prompt_id=prompt.prompt_id,
            batch_size=batch_size,
            prompt_tokens=min(len(prompt.token_ids), PREFILL_TOKENS),
            rounds=tuple(rounds),
            plain=tuple(plain),
            prefill=prefill,
            plain_prefill=plain_prefill,
            turn=turn,
        )

    def pair(
        self,
        prompts: Sequence[EncodedPrompt],
        params: SamplingParams,
        num_tokens: int,
        turn: int = 0,
    ) -> Confirmed:
        """Some prompts side by side at a fixed length, and plainly, a few rounds of each in turns."""
        self.policy.lengths = (num_tokens,)
        seconds, tokens = [0.0, 0.0], [0, 0]
        for steps in self._in_turns(prompts, params):
            for side in (0, 1):
                seconds[side] += sum(step.seconds for step in steps[side])
                tokens[side] += sum(step.tokens for step in steps[side])
        categories = {prompt.category for prompt in prompts}
        return Confirmed(
            candidate=self.candidate.name,
            num_tokens=num_tokens,
            batch_size=len(prompts),
            prompt_id=prompts[0].prompt_id,
            category=categories.pop() if len(categories) == 1 else "",
            turn=turn,
            seconds=seconds[0],
            tokens=tokens[0],
            plain_seconds=seconds[1],
            plain_tokens=tokens[1],
        )

    def warm_up(self, prompt: EncodedPrompt, params: SamplingParams) -> None:
        """A short pair that is not counted."""
        self.pair([prompt], replace(params, max_tokens=16), self.candidate.longest)

    def _in_turns(
        self, prompts: Sequence[EncodedPrompt], params: SamplingParams
    ) -> Iterator[tuple[list[_Step], list[_Step]]]:
        """A few rounds of both sides in turns: what slows the machine down for a while slows both."""
        ours = self._speculative(prompts, params)
        theirs = self._plain(prompts, params)
        while True:
            steps = list(islice(ours, CHUNK)), list(islice(theirs, CHUNK))
            if not steps[0] and not steps[1]:
                return
            yield steps

    def _speculative(
        self, prompts: Sequence[EncodedPrompt], params: SamplingParams
    ) -> Iterator[_Step]:
        first = True
        for spent, rest, tokens in self._steps(self.engine, prompts, params):
            if not self._rounds:
                continue  # A prompt has failed.
            done, drafted = self._rounds.pop(), self.policy.planned > 0
            one = None
            if len(done.requests) == len(prompts):
                emitted = sum(len(verdict.token_ids) for verdict in done.verdicts)
                one = RoundTiming(
                    batch_size=len(prompts),
                    nodes=sum(map(len, done.drafts)) / len(prompts),
                    drafted=drafted,
                    first=first and drafted,
                    context=(sum(map(len, done.requests)) - emitted) / len(prompts),
                    draft=done.times.draft,
                    target=done.times.target,
                    verify=done.times.verify,
                    host=max(rest - done.times.total, 0.0),
                )
            first = first and not drafted
            yield _Step(spent, tokens, one)

    def _plain(self, prompts: Sequence[EncodedPrompt], params: SamplingParams) -> Iterator[_Step]:
        """By the plain loop or, of a batch, in rounds without drafts; all of a round is the target's."""
        context = sum(len(prompt.token_ids) for prompt in prompts) / len(prompts)
        if len(prompts) > 1:
            steps = self._steps(self.plain, prompts, params)
            for at, (spent, rest, tokens) in enumerate(steps):
                whole = tokens == len(prompts)
                one = _plain_round(tokens, context + at, rest) if whole else None
                yield _Step(spent, tokens, one)
            return
        empty_caches(self.plain)
        stream = self.plain.stream_plain(prompts[0].token_ids, params)
        started = perf_counter()
        for at, _ in enumerate(stream):
            spent = perf_counter() - started
            rest = spent - (0.0 if at else stream.completion.stats.prefill_seconds)
            yield _Step(spent, 1, _plain_round(1, context + at, rest))
            started = perf_counter()

    def _steps(
        self, engine: Engine, prompts: Sequence[EncodedPrompt], params: SamplingParams
    ) -> Iterator[tuple[float, float, int]]:
        """Seconds of each step of an engine, those without prefill, and its tokens.

        Raises:
            Exception: that ended a request.
        """
        empty_caches(engine)
        numbers = [
            engine.add(prompt.token_ids, _own(params, index), hints=alone())
            for index, prompt in enumerate(prompts)
        ]
        while engine.has_work:
            before, started = engine.stats.prefill_seconds, perf_counter()
            events = engine.step()
            spent = perf_counter() - started
            yield spent, spent - (engine.stats.prefill_seconds - before), len(events)
        for number in numbers:
            error = engine.completion(number).error
            if error is not None:
                raise error

    def _time_prefill(self, prompt: EncodedPrompt, params: SamplingParams) -> tuple[float, float]:
        """The least seconds of both sides for the beginning of a prompt."""
        beginning = prompt.token_ids[:PREFILL_TOKENS]
        one = replace(params, max_tokens=1)
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(PREFILL_RUNS):
            for side, engine in zip(seconds, (self.engine, self.plain), strict=True):
                empty_caches(engine)
                done = engine.generate(beginning, one, hints=alone())
                side.append(done.stats.prefill_seconds)
        return min(seconds[0]), min(seconds[1])


def _like(engine: Engine, drafter: Drafter | None = None, policy: Policy | None = None) -> Engine:
    """Another engine of the same target."""
    return Engine(
        engine.target,
        drafter,
        engine.config if drafter is not None else None,
        policy=policy,
        tokenizer=engine.tokenizer,
        eos_token_ids=engine.eos_token_ids,
        max_batch_size=engine.max_batch_size,
        max_context=engine.max_context,
        sampling_defaults=engine.sampling_defaults,
    )


def _is_lookup(drafter: Any) -> bool:
    """True if a drafter takes its tokens from a text: such drafts may be filled up with any others."""
    return drafter.drawings == {Drawing.GREEDY} and not (
        drafter.needs_draft_model or drafter.head or drafter.hidden_layers or drafter.shared_layers
    )


def _plain_round(batch_size: int, context: float, seconds: float) -> RoundTiming:
    return RoundTiming(batch_size, 0.0, False, False, context, 0.0, seconds, 0.0, 0.0)


def _own(params: SamplingParams, index: int) -> SamplingParams:
    """Requests side by side differ in their seeds, where they have any."""
    return params if params.seed is None else replace(params, seed=params.seed + index)


def _if_any(values: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    return tuple(values) if any(values) else ()
