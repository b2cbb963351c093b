"""Recording and timing of one candidate, in an engine whose lengths are given."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any, cast

from benchmarks.rivals.records import PromptTiming, RecordedOutput, RoundTiming
from benchmarks.rivals.side_by_side import SideBySide
from benchmarks.rivals.steering import FirstTokens, SetLength, Steered
from forerun.bench.runs import EncodedPrompt, run_drafting, run_plain
from forerun.contracts import Drafter, Policy
from forerun.core import Drawing
from forerun.engine.engine import Engine
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


class Workbench:
    """An engine whose policy is told its lengths, and one that decodes plainly with the same target.

    Args:
        engine: with a drafter.
        policy: the engine's.
        name: what drafts.
        longest: tokens that are drafted along any path at most.
        is_tree: whether it drafts trees, which are not beginnings of deeper ones.
    """

    def __init__(
        self, engine: Engine, policy: SetLength, name: str, longest: int, is_tree: bool = False
    ) -> None:
        self.engine, self.policy = engine, policy
        self.name, self.longest, self.is_tree = name, longest, is_tree
        assert engine.drafter is not None, "a candidate drafts"
        self.drafter: Drafter = engine.drafter
        self._steered: Steered | None = None
        if _is_lookup(self.drafter) and not is_tree:
            # Lookups often find little: the lengths between are timed all the same.
            self._steered = Steered(self.drafter)
            self.drafter = cast(Drafter, self._steered)
            self.engine = _like(engine, self.drafter, policy)
        self._rounds: deque[TimedRound] = deque(maxlen=1)
        self.engine.watch_rounds(self._rounds.append)
        self.plain = _like(engine)

    def warm_up(self, prompt: EncodedPrompt, params: SamplingParams) -> None:
        """A short run of both sides that is not counted."""
        self.policy.lengths = (self.longest,)
        short = replace(params, max_tokens=16)
        run_drafting(self.engine, [prompt], short)
        run_plain(self.plain, [prompt], short)

    def record(self, prompt: EncodedPrompt, params: SamplingParams) -> RecordedOutput:
        """One output, with what would be accepted at each of its positions."""
        first, confidences = FirstTokens(), list[float]()
        noted = []
        self.policy.lengths, self.policy.asks = (self.longest,), self.drafter
        if self._steered is not None:
            self._steered.accepted = first.accepted
        with watched_rules(self.engine, first.see):
            empty_caches(self.engine)
            stream = self.engine.stream(prompt.token_ids, params, hints=alone())
            for _ in stream:
                noted.append(first.take())
                confidences += self.policy.confidences
        completion = stream.completion
        self.policy.asks = None
        if self._steered is not None:
            self._steered.accepted = None
        probs = tuple(note.token_probs for note in noted)
        return RecordedOutput(
            candidate=self.name,
            prompt_id=prompt.prompt_id,
            category=prompt.category,
            prompt_ids=prompt.token_ids,
            token_ids=completion.token_ids,
            max_tokens=params.max_tokens or 0,
            nodes=tuple(note.nodes for note in noted),
            depths=tuple(note.depth for note in noted),
            accepted=tuple(note.accepted for note in noted),
            confidences=tuple(confidences),
            token_probs=probs if any(probs) else (),
            prefill_seconds=completion.stats.prefill_seconds,
        )

    def time(
        self, prompt: EncodedPrompt, params: SamplingParams, batch_size: int = 1, turn: int = 0
    ) -> PromptTiming:
        """The rounds of one prompt with lengths in turns, a few of them beside a few plain ones: what
        slows the machine down for a while slows both."""
        longest = self.longest
        turns = tuple(n for n in LENGTHS if n <= longest)
        self.policy.lengths = (longest, 0) if self.is_tree else turns
        if self._steered is not None:
            self._steered.fills = True
        prompts = [prompt] * batch_size
        ours, theirs = self._drafting(prompts, params), self._plain(prompts, params)
        rounds: list[RoundTiming] = []
        plain: list[tuple[float, float]] = []
        beside = 0.0
        while True:
            now, plainly = list(islice(ours, CHUNK)), list(islice(theirs, CHUNK))
            if not now and not plainly:
                break
            plain += plainly
            beside = median(seconds for _, seconds in plainly) if plainly else beside
            rounds += [replace(timed, beside=beside) for timed in now]
        if self._steered is not None:
            self._steered.fills = False
        prefill, plain_prefill = self._time_prefill(prompt, params)
        return PromptTiming(
            candidate=self.name,
            prompt_id=prompt.prompt_id,
            batch_size=batch_size,
            prompt_tokens=min(len(prompt.token_ids), PREFILL_TOKENS),
            rounds=tuple(rounds),
            plain=tuple(plain),
            prefill=prefill,
            plain_prefill=plain_prefill,
            turn=turn,
        )

    def _drafting(
        self, prompts: Sequence[EncodedPrompt], params: SamplingParams
    ) -> Iterator[RoundTiming]:
        """The rounds in which all requests take part."""
        first, count = True, len(prompts)
        requests = SideBySide(self.engine, prompts, params)
        for step in requests.steps():
            if not self._rounds:
                continue  # A prompt has failed.
            done, drafted = self._rounds.pop(), self.policy.planned > 0
            if len(done.requests) == count:
                emitted = sum(len(verdict.token_ids) for verdict in done.verdicts)
                yield RoundTiming(
                    batch_size=count,
                    nodes=sum(map(len, done.drafts)) / count,
                    drafted=drafted,
                    first=first and drafted,
                    context=(sum(map(len, done.requests)) - emitted) / count,
                    draft=done.times.draft,
                    target=done.times.target,
                    verify=done.times.verify,
                    host=max(step.seconds - step.prefill - done.times.total, 0.0),
                )
            first = first and not drafted
        requests.completions()

    def _plain(
        self, prompts: Sequence[EncodedPrompt], params: SamplingParams
    ) -> Iterator[tuple[float, float]]:
        """Context and seconds of each token by the plain loop or, of a batch, of each plain round."""
        context = sum(len(prompt.token_ids) for prompt in prompts) / len(prompts)
        if len(prompts) > 1:
            requests = SideBySide(self.plain, prompts, params, speculative=False)
            for at, step in enumerate(requests.steps()):
                if len(step.events) == len(prompts):
                    yield context + at, step.seconds - step.prefill
            requests.completions()
            return
        empty_caches(self.plain)
        stream = self.plain.stream_plain(prompts[0].token_ids, params)
        started = perf_counter()
        for at, _ in enumerate(stream):
            prefill = 0.0 if at else stream.completion.stats.prefill_seconds
            yield context + at, perf_counter() - started - prefill
            started = perf_counter()

    def _time_prefill(self, prompt: EncodedPrompt, params: SamplingParams) -> tuple[float, float]:
        """The least seconds of both sides for the beginning of a prompt."""
        beginning = replace(prompt, token_ids=prompt.token_ids[:PREFILL_TOKENS])
        single = replace(params, max_tokens=1)

        def least(engine: Engine) -> float:
            runs = (run_drafting(engine, [beginning], single) for _ in range(PREFILL_RUNS))
            return min(run.stats.prefill_seconds for run in runs)

        return least(self.engine), least(self.plain)


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
