"""The engine: admits requests, runs rounds over all that are running, hands out what came of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from time import perf_counter

from forerun.core import (
    CausalLM,
    Drafter,
    Drawing,
    FinishReason,
    Plan,
    Policy,
    Sequence,
)
from forerun.engine.compatibility import check_drafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.plain import stream_plain
from forerun.engine.requests import Completion, Running, TokenEvent
from forerun.engine.step import Parts, run_round
from forerun.engine.stream import Stream
from forerun.engine.text import TextStream, Tokenizer
from forerun.errors import ConfigError, PromptError
from forerun.models.running import prefill
from forerun.params import SamplingParams
from forerun.policies import make_policy
from forerun.randomness import Randomness, fresh_seed
from forerun.sampling import check_token_ids
from forerun.stats import Stats
from forerun.verification import drawing_for

DEFAULT_PARAMS = SamplingParams()
# Cache slots beyond the context for the nodes of a tree; a chain never reaches past the context.
MOST_TREE_NODES = 128


class Engine:
    """Generates text with a target model and, where given, a drafter: exactly the target's own.

    Args:
        target: the model whose text it is.
        drafter: proposes tokens; None decodes plainly.
        config: how to speculate.
        tokenizer: for text prompts, text output and stop strings; ids alone work without.
        eos_token_ids: tokens that end a text.
        max_batch_size: requests that run at once; more wait.
        max_context: prompt and output tokens of a request at most; None means the target's own.
        randomness: the source of random numbers; tests hand in one that keeps a record.

    Raises:
        ConfigError: for a combination that cannot work, naming its parts.
    """

    def __init__(
        self,
        target: CausalLM,
        drafter: Drafter | None = None,
        config: SpeculativeConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        eos_token_ids: Iterable[int] = (),
        max_batch_size: int = 1,
        max_context: int | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self.config = config or SpeculativeConfig()
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size is {max_batch_size}; it must be at least 1.")
        if max_context is not None and max_context < 2:
            raise ConfigError(f"max_context is {max_context}; it takes a prompt and a token, 2.")
        if drafter is not None:
            check_drafter(drafter, target, self.config)
        self.target, self.tokenizer = target, tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_context = min(max_context or target.max_context, target.max_context)
        self.drafter = drafter
        self.policy: Policy | None = None
        if drafter is not None:
            self.policy = make_policy(
                self.config.policy, self.config.num_speculative_tokens, self.config.monitor
            )
        tree_slots = MOST_TREE_NODES if drafter is not None and drafter.draws_trees else 0
        self._parts = Parts(
            target=target,
            cache=target.new_cache(max_batch_size, self.max_context + tree_slots),
            randomness=randomness or Randomness(),
            rule=self.config.rejection_sample_method,
            drafter=drafter,
            policy=self.policy,
        )
        self._free_rows = list(range(max_batch_size))
        self._waiting: deque[Running] = deque()
        self._running: dict[int, Running] = {}
        self._ended: dict[int, Completion] = {}
        self._next_id = 0
        self._past = Stats()

    def add(
        self,
        prompt: str | Iterable[int],
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        speculative: bool = True,
    ) -> int:
        """Queue a request and return its id; it starts when a row is free.

        Its tokens come out of `step`; `completion` hands out what it came to, once, and forgets it.

        Raises:
            PromptError: for an empty prompt or one that leaves no room for a token.
            ConfigError: for token ids outside the vocabulary, or stop strings without a tokenizer.
        """
        running = self._prepare(prompt, params, speculative)
        self._waiting.append(running)
        return running.sequence.request_id

    def step(self) -> list[TokenEvent]:
        """Admit waiting requests, run one round over all that run, and return what it emitted."""
        self._admit()
        running = list(self._running.values())
        if not running:
            return []
        try:
            verdicts = run_round(self._parts, running, self._plan(running))
        except BaseException:
            # Whatever stopped the round (a mask hook, Ctrl-C), the caches must not hold its draft.
            for one in running:
                self._parts.cache.trim(one.sequence.row, len(one.sequence) - 1)
            self._end_finished(running)
            raise
        events = []
        for one, verdict in zip(running, verdicts, strict=True):
            events += one.events(len(verdict.token_ids))
        self._end_finished(running)
        return events

    def generate(
        self,
        prompts: Iterable[str | Iterable[int]],
        params: SamplingParams | Iterable[SamplingParams] = DEFAULT_PARAMS,
        *,
        speculative: bool = True,
    ) -> list[Completion]:
        """Complete all prompts, as many at once as there are rows, and return them in order."""
        several = list(prompts)
        each = [params] * len(several) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(several):
            raise ConfigError(f"{len(several)} prompts but {len(each)} sets of parameters.")
        ids = [
            self.add(prompt, one, speculative=speculative)
            for prompt, one in zip(several, each, strict=True)
        ]
        try:
            while not all(request_id in self._ended for request_id in ids):
                self.step()
        finally:  # an error in one request must not leave the others behind
            for request_id in ids:
                self.cancel(request_id)
            completions = [self._ended.pop(request_id) for request_id in ids]
        return completions

    def stream(
        self,
        prompt: str | Iterable[int],
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        speculative: bool = True,
    ) -> Stream:
        """Complete one prompt, token by token. It is queued
        when the first token is asked for; leaving the loop early cancels it."""
        running = self._prepare(prompt, params, speculative)
        return Stream(running.sequence.request_id, self._follow(running), running.completion)

    def stream_plain(
        self, prompt: str | Iterable[int], params: SamplingParams = DEFAULT_PARAMS
    ) -> Stream:
        """The same by the plain loop, without drafter or rounds: the baseline to compare with.

        Raises:
            ConfigError: where no row is free.
        """
        running = self._prepare(prompt, params, speculative=False)
        if not self._free_rows:
            raise ConfigError("all rows are taken; finish or cancel a request first.")
        return Stream(running.sequence.request_id, self._decode_plain(running), running.completion)

    def completion(self, request_id: int) -> Completion:
        """What a request has come to so far; one that has ended is handed out once.

        Raises:
            ConfigError: for a request that is not known, or no longer.
        """
        if request_id in self._ended:
            return self._ended.pop(request_id)
        for one in (*self._running.values(), *self._waiting):
            if one.sequence.request_id == request_id:
                return one.completion()
        raise ConfigError(f"there is no request {request_id}; each is handed out once.")

    def cancel(self, request_id: int) -> bool:
        """End a request that waits or runs and free its row; False if it has ended already."""
        for one in list(self._waiting):
            if one.sequence.request_id == request_id:
                self._waiting.remove(one)
                one.sequence.finish_reason = FinishReason.CANCELLED
                self._ended[request_id] = one.completion()
                return True
        for one in list(self._running.values()):
            if one.sequence.request_id == request_id:
                one.sequence.finish_reason = FinishReason.CANCELLED
                self._end(one)
                return True
        return False

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def stats(self) -> Stats:
        """Counters of all requests of this engine, running ones included."""
        return Stats.total([self._past, *(one.stats for one in self._running.values())])

    def _prepare(
        self, prompt: str | Iterable[int], params: SamplingParams, speculative: bool
    ) -> Running:
        token_ids = self._encode(prompt)
        if not token_ids:
            raise PromptError("the prompt is empty; give at least one token to go on from.")
        if len(token_ids) >= self.max_context:
            raise PromptError(
                f"the prompt has {len(token_ids)} tokens and the context {self.max_context}; "
                "shorten the prompt or raise max_context."
            )
        check_token_ids(params, self.target.vocab_size)
        if params.stop and self.tokenizer is None:
            raise ConfigError("stop strings need a tokenizer; use stop_token_ids instead.")
        room = self.max_context - len(token_ids)
        sequence = Sequence(
            request_id=self._next_id,
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            params=params,
            seed=fresh_seed() if params.seed is None else params.seed,
            speculative=speculative,
        )
        self._next_id += 1
        ends = frozenset() if params.ignore_eos else self.eos_token_ids
        return Running(
            sequence=sequence,
            stop_token_ids=ends | frozenset(params.stop_token_ids),
            token_limit=min(params.max_tokens or room, room),
            stream=TextStream(self.tokenizer, params.stop),
            stats=Stats(prompt_tokens=len(token_ids)),
        )

    def _encode(self, prompt: str | Iterable[int]) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ConfigError("a text prompt needs a tokenizer; give token ids instead.")
            return list(self.tokenizer.encode(prompt))
        token_ids = list(prompt)
        for token in token_ids:
            if not 0 <= token < self.target.vocab_size:
                raise PromptError(
                    f"the prompt holds token id {token}; this model's ids are "
                    f"0 to {self.target.vocab_size - 1}."
                )
        return token_ids

    def _admit(self) -> None:
        while self._waiting and self._free_rows:
            one = self._waiting.popleft()
            one.sequence.row = self._free_rows.pop(0)
            self._running[one.sequence.row] = one
            started = perf_counter()
            # The last prompt token runs with the first draft, in the first round.
            prompt = one.sequence.token_ids[:-1]
            prefill(self.target, self._parts.cache, one.sequence.row, prompt)
            one.stats.prefill_seconds += perf_counter() - started

    def _follow(self, running: Running) -> Iterator[TokenEvent]:
        request_id = running.sequence.request_id
        self._waiting.append(running)
        try:
            while running.sequence.finish_reason is None:
                for event in self.step():
                    if event.request_id == request_id:
                        yield event
        finally:
            self.cancel(request_id)
            self._ended.pop(request_id, None)

    def _decode_plain(self, running: Running) -> Iterator[TokenEvent]:
        # It takes a row, but no part in the rounds.
        running.sequence.row = self._free_rows.pop(0)
        parts = self._parts
        try:
            yield from stream_plain(self.target, parts.cache, running, parts.randomness)
        finally:
            self._end(running)
            del self._ended[running.sequence.request_id]

    def _end_finished(self, running: list[Running]) -> None:
        for one in running:
            if one.sequence.finish_reason is not None:
                self._end(one)

    def _end(self, one: Running) -> None:
        sequence = one.sequence
        self._running.pop(sequence.row, None)
        self._parts.cache.trim(sequence.row, 0)
        if self.drafter is not None and self.policy is not None:
            self.drafter.release(sequence)
            self.policy.release(sequence)
        self._free_rows = sorted([*self._free_rows, sequence.row])
        self._past = Stats.total([self._past, one.stats])
        self._ended[sequence.request_id] = one.completion()

    def _plan(self, running: list[Running]) -> list[Plan]:
        """The policy's plans, cut to what can still be emitted, with the way to draw."""
        if self.policy is None or self.drafter is None:
            return [Plan(0)] * len(running)
        plans = self.policy.plan([one.sequence for one in running])
        return [
            replace(plan, num_tokens=self._room(one, plan), drawing=self._drawing(one))
            for one, plan in zip(running, plans, strict=True)
        ]

    @staticmethod
    def _room(one: Running, plan: Plan) -> int:
        if not one.sequence.speculative:
            return 0
        # Every round emits one token beyond the draft; more than the limit would be thrown away.
        return min(plan.num_tokens, one.token_limit - one.sequence.num_output_tokens - 1)

    def _drawing(self, one: Running) -> Drawing:
        assert self.drafter is not None
        wanted = drawing_for(self.config.rejection_sample_method, one.sequence)
        if self.config.draft_sample_method == "greedy" and wanted is Drawing.DRAW:
            return Drawing.TOP
        return wanted if wanted in self.drafter.drawings else Drawing.TOP
