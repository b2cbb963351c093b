"""The engine: admits requests, runs rounds over all that are running, hands out what came of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

from forerun.contracts import Cache, CausalLM, Drafter, Policy, Verifier
from forerun.core import NO_HINTS, Drawing, Exactness, FinishReason, Hints, Plan
from forerun.engine.compatibility import check_depth, check_drafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.intake import Intake, Prompt
from forerun.engine.plain import stream_plain
from forerun.engine.requests import Completion, Running, TokenEvent
from forerun.engine.step import OnRound, Parts, run_round
from forerun.engine.stream import Stream
from forerun.engine.text import Tokenizer
from forerun.errors import ConfigError, PromptError
from forerun.models.running import prefill
from forerun.params import SamplingParams
from forerun.policies import make_policy
from forerun.randomness import Randomness, fresh_seed
from forerun.stats import Stats
from forerun.trees import MOST_NODES
from forerun.trees.plans import load_tree, plan_tree
from forerun.verification import AUTO, drawing_for

DEFAULT_PARAMS = SamplingParams()


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
        context = target.max_context if max_context is None else max_context
        if not 2 <= context <= target.max_context:
            raise ConfigError(
                f"max_context is {max_context}; {target.name} takes 2 to {target.max_context} tokens."
            )
        if drafter is not None:
            check_drafter(drafter, target, self.config, max_batch_size)
        elif self.config.method is not None:
            raise ConfigError(
                f"the config asks for method {self.config.method!r} and no drafter was given; "
                "use forerun.load, or hand in the drafter."
            )
        self.target, self.drafter, self.tokenizer = target, drafter, tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_context, self.max_batch_size = context, max_batch_size
        self.rules: dict[str, Verifier] = {}
        """Rules in use by name; one that is put here is used in place of the table's."""
        self.policy: Policy | None = None
        if drafter is not None:
            self.policy = make_policy(
                self.config.policy, self.config.num_speculative_tokens, self.config.monitor
            )
        self._tree = load_tree(self.config.tree)
        check_depth(self._tree, self.config)
        # A chain never reaches past the context.
        trees = drafter is not None and (drafter.draws_trees or self._tree is not None)
        tree_slots = MOST_NODES if trees else 0
        self._parts = Parts(
            target=target,
            cache=target.new_cache(max_batch_size, context + tree_slots),
            randomness=randomness or Randomness(),
            rule=self.config.rejection_sample_method,
            drafter=drafter,
            policy=self.policy,
            rules=self.rules,
        )
        if drafter is not None:
            drafter.attach(self._parts.cache)
        self._free_rows = list(range(max_batch_size))
        self._intake = Intake(target, tokenizer, self.eos_token_ids, context)
        self._waiting: deque[Running] = deque()
        self._running: dict[int, Running] = {}
        self._added: dict[int, Running] = {}
        self._past = Stats()

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        speculative: bool = True,
        hints: Hints = NO_HINTS,
    ) -> int:
        """Queue a request and return its id; it starts when a row is free.

        Its tokens come out of `step`; `completion` hands out what it came to, once, and forgets it.

        Raises:
            PromptError: for an empty prompt or one that leaves no room for a token.
            ConfigError: for token ids outside the vocabulary, or stop strings without a tokenizer.
        """
        one = self._intake.take(prompt, params, speculative, hints)
        self._waiting.append(one)
        self._added[one.sequence.request_id] = one
        return one.sequence.request_id

    def step(self) -> list[TokenEvent]:
        """Run one round over all that can run; the new tokens of all requests made with `add`.

        A request that fails (a mask hook that raises, say) ends by itself with the finish reason
        ERROR, and its completion carries the error.
        """
        self._round()
        return [event for one in self._added.values() for event in one.hand_out()]

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Iterable[SamplingParams] = DEFAULT_PARAMS,
        *,
        speculative: bool = True,
        hints: Hints | Iterable[Hints] = NO_HINTS,
    ) -> list[Completion]:
        """Complete all prompts, as many at once as there are rows, and return them in order.

        Raises:
            ForerunError: for a bad prompt before anything runs; an error in a request ends all.
        """
        if isinstance(prompts, str):
            raise PromptError("generate takes a list of prompts; put this one into a list.")
        several = list(prompts)
        each = [params] * len(several) if isinstance(params, SamplingParams) else list(params)
        told = [hints] * len(several) if isinstance(hints, Hints) else list(hints)
        if len(each) != len(several) or len(told) != len(several):
            raise ConfigError(
                f"{len(several)} prompts but {len(each)} sets of parameters, {len(told)} of hints."
            )
        requests = [
            self._intake.take(prompt, one, speculative, hint)
            for prompt, one, hint in zip(several, each, told, strict=True)
        ]
        self._waiting.extend(requests)
        try:
            while not all(one.finished for one in requests):
                self._round()
                for one in requests:
                    if one.error is not None:
                        raise one.error
        finally:
            for one in requests:
                self._cancel(one)
        return [one.completion() for one in requests]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        speculative: bool = True,
        hints: Hints = NO_HINTS,
    ) -> Stream:
        """Complete one prompt, token by token.

        It is queued when the first token is asked for; leaving the loop early cancels it.
        """
        one = self._intake.take(prompt, params, speculative, hints)
        return Stream(one.sequence.request_id, self._follow(one), one.completion)

    def stream_plain(self, prompt: Prompt, params: SamplingParams = DEFAULT_PARAMS) -> Stream:
        """The same by the plain loop, without drafter or rounds: the baseline to compare with.

        Raises:
            ConfigError: when the first token is asked for and no row is free.
        """
        one = self._intake.take(prompt, params, speculative=False)
        return Stream(one.sequence.request_id, self._decode_plain(one), one.completion)

    def completion(self, request_id: int) -> Completion:
        """What a request made with `add` has come to; one that has ended is handed out once.

        Raises:
            ConfigError: for a request that is not known, or no longer.
        """
        if request_id not in self._added:
            raise ConfigError(f"there is no request {request_id}; each is handed out once.")
        one = self._added[request_id]
        if one.finished:
            del self._added[request_id]
        return one.completion()

    def cancel(self, request_id: int) -> bool:
        """End a request that waits or runs and free its row; False if it has ended already."""
        for one in (*self._waiting, *self._running.values()):
            if one.sequence.request_id == request_id:
                self._cancel(one)
                return True
        return False

    def use_seeds(self, source: Callable[[], int] = fresh_seed) -> None:
        """Have requests without a seed take it from `source`, so that a run can be repeated."""
        self._intake.next_seed = source

    def watch_rounds(self, see: OnRound | None) -> None:
        """Have `see` told, in every round from now on, what was drafted and what became of it."""
        self._parts.on_round = see

    @contextmanager
    def idle_cache(self) -> Iterator[Cache]:
        """The target's cache, for other work with the target while the block runs.

        Raises:
            ConfigError: while requests wait or run.
        """
        if self.has_work or len(self._free_rows) < self.max_batch_size:
            raise ConfigError("the cache is in use; finish or cancel the requests first.")
        try:
            yield self._parts.cache
        finally:
            for row in range(self.max_batch_size):
                self._parts.cache.trim(row, 0)

    @property
    def exactness(self) -> Exactness:
        """What comes out, beside plain decoding: what the target promises, unless the drafter or the
        rule that was named changes the distribution."""
        methods: list[Exactness] = []
        if self.drafter is not None:
            methods.append(self.drafter.exactness)
            if self.config.rejection_sample_method != AUTO:
                methods.append(
                    self._parts.rule_named(self.config.rejection_sample_method).exactness
                )
        return Exactness.APPROXIMATE if Exactness.APPROXIMATE in methods else self.target.exactness

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def stats(self) -> Stats:
        """Counters of all requests of this engine, running ones included."""
        return Stats.total([self._past, *(one.stats for one in self._running.values())])

    def _round(self) -> None:
        self._admit()
        running = list(self._running.values())
        if not running:
            return
        try:
            run_round(self._parts, running, self._plan(running))
        finally:
            for one in running:
                # Whatever stopped the round, the caches must not hold its draft.
                self._parts.cache.trim(one.sequence.row, len(one.sequence) - 1)
                if one.finished:
                    self._end(one)

    def _admit(self) -> None:
        while self._waiting and self._free_rows:
            one = self._waiting[0]
            one.sequence.row = self._free_rows.pop(0)
            started = perf_counter()
            try:
                # The last prompt token runs with the first draft, in the first round.
                prompt = one.sequence.token_ids[:-1]
                prefill(self.target, self._parts.cache, one.sequence.row, prompt)
            except Exception as error:
                one.fail(error)
            except BaseException:
                self._give_back(one.sequence.row)
                raise
            self._waiting.popleft()
            one.stats.prefill_seconds += perf_counter() - started
            if one.finished:
                self._end(one)
            else:
                self._running[one.sequence.row] = one

    def _follow(self, one: Running) -> Iterator[TokenEvent]:
        self._waiting.append(one)
        seen = 0
        try:
            # Rounds that someone else ran may have brought tokens, the last ones too.
            while (events := one.events(seen)) or not one.finished:
                seen += len(events)
                yield from events
                if not one.finished:
                    self._round()
        finally:
            self._cancel(one)
        if one.error is not None:
            raise one.error

    def _decode_plain(self, one: Running) -> Iterator[TokenEvent]:
        if not self._free_rows:
            raise ConfigError("all rows are taken; finish or cancel a request first.")
        # It takes a row, but no part in the rounds.
        one.sequence.row = self._free_rows.pop(0)
        parts = self._parts
        try:
            yield from stream_plain(self.target, parts.cache, one, parts.randomness)
        finally:
            if not one.finished:
                one.sequence.finish_reason = FinishReason.CANCELLED
            self._end(one)

    def _cancel(self, one: Running) -> None:
        if one.finished:
            return
        one.sequence.finish_reason = FinishReason.CANCELLED
        if one in self._waiting:
            self._waiting.remove(one)
        else:
            self._end(one)

    def _end(self, one: Running) -> None:
        sequence = one.sequence
        self._running.pop(sequence.row, None)
        if self.drafter is not None and self.policy is not None:
            self.drafter.release(sequence)
            self.policy.release(sequence)
        self._give_back(sequence.row)
        self._past = Stats.total([self._past, one.stats])

    def _give_back(self, row: int) -> None:
        self._parts.cache.trim(row, 0)
        self._free_rows = sorted([*self._free_rows, row])

    def _plan(self, running: list[Running]) -> list[Plan]:
        """The policy's plans, cut to what can still be emitted, with the tree and the way to draw."""
        if self.policy is None or self.drafter is None:
            return [Plan(0)] * len(running)
        plans = self.policy.plan([one.sequence for one in running])
        return [
            plan_tree(
                self._tree, self.config.num_tree_nodes, self._room(one, plan), self._drawing(one)
            )
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
        if self.config.draft_sample_method == "greedy":
            return Drawing.TOP
        wanted = drawing_for(self.config.rejection_sample_method, one.sequence)
        return wanted if wanted in self.drafter.drawings else Drawing.TOP
