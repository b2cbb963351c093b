"""The engine's interface: it takes requests and returns tokens and completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, Unpack, overload

from forerun.contracts import Cache, CausalLM, Drafter, Policy, Verifier
from forerun.core import NO_HINTS, Exactness, Hints, Stats
from forerun.engine.chat import Message
from forerun.engine.config import SpeculativeConfig
from forerun.engine.intake import Intake, Params, Prompt, repeated, split
from forerun.engine.parts import NoDrafter, NoPolicy, OnRound, Parts
from forerun.engine.rehearsal import rehearse
from forerun.engine.requests import Completion, Running, TokenEvent
from forerun.engine.scheduler import Scheduler
from forerun.engine.sessions import Sessions
from forerun.engine.settings import (
    EngineOptions,
    EngineSettings,
    check_engine,
    check_part,
    refuse_unknown,
)
from forerun.engine.stream import Added, Stream, follow, follow_plain, run_all
from forerun.engine.text import Tokenizer
from forerun.errors import ConfigError, shown
from forerun.params import SamplingOptions
from forerun.policies.fixed import FixedPolicy
from forerun.randomness import Randomness, fresh_seed


class Engine:
    """Generates exactly the target's own text, with a drafter if one is given.

    Threads may share an engine: each call waits for the others' rounds. A hook or a drafter that
    calls the engine in which it runs is refused. After an exception or an interruption the engine
    continues as if the interrupted round had not begun.

    Args:
        target: the model whose text is generated.
        drafter: proposes tokens; None decodes plainly.
        config: configuration of speculation.
        policy: decides how far to speculate; None makes the one that the config names.
        tokenizer: for text prompts, text output and stop strings; not needed for token ids.
        randomness: source of random numbers; tests pass one that keeps a record.
        options: fields of `forerun.engine.settings.EngineSettings` by name: `eos_token_ids`,
            which end a text; `max_batch_size`, requests that run at once; `max_context`, most prompt
            and output tokens of a request; `prefix_reuse`; `compression`; `sampling_defaults`.

    Attributes:
        sessions: saves texts of the cache in files, and loads them.

    Raises:
        ConfigError: for a combination that cannot work, naming its parts.
    """

    def __init__(
        self,
        target: CausalLM,
        drafter: Drafter | None = None,
        config: SpeculativeConfig | None = None,
        *,
        policy: Policy | None = None,
        tokenizer: Tokenizer | None = None,
        randomness: Randomness | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        refuse_unknown(Engine, options, EngineOptions.__annotations__)
        settings = EngineSettings(**options)  # type: ignore[arg-type]  # converted when it is made
        self.config = SpeculativeConfig() if config is None else config
        check_engine(target, drafter, self.config, settings)
        given = {"policy": policy, "tokenizer": tokenizer, "randomness": randomness}
        for name, part in given.items():
            check_part(name, part)
        self.target, self.drafter, self.tokenizer = target, drafter, tokenizer
        self.eos_token_ids = frozenset(settings.eos_token_ids)
        self.max_context = settings.max_context or target.max_context
        self.max_batch_size, self.compression = settings.max_batch_size, settings.compression
        self.policy = None if drafter is None else policy or self.config.make_policy()
        self._policy = self.policy or NoPolicy()
        self._parts = Parts.of(
            target,
            NoDrafter() if drafter is None else drafter,
            self._policy,
            self.config,
            randomness or Randomness(),
            (self.max_batch_size, self.max_context),
            self.compression,
        )
        self.rules: dict[str, Verifier] = self._parts.rules
        """Rules in use by name; a rule added here replaces that of the table."""
        self._scheduler = Scheduler(self._parts, self.max_batch_size, settings.prefix_reuse)
        self._policy.rehearse(partial(rehearse, self._scheduler, self.max_context))
        self._added = Added(self._scheduler)
        self._intake = Intake(
            target, tokenizer, self.eos_token_ids, self.max_context, settings.sampling_defaults
        )
        self.sessions = Sessions(self._scheduler, self.max_context)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "sessions") and not name.startswith("_"):
            raise ConfigError(
                f"{name} of an engine cannot be set; make another engine, give sampling parameters with each "
                "call, and put a rule into engine.rules by name."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        drafter = None if self.drafter is None else self.drafter.name
        return (
            f"Engine({self.target.name!r}, drafter={drafter!r}, "
            f"max_batch_size={self.max_batch_size}, max_context={self.max_context})"
        )

    def add(
        self,
        prompt: Prompt,
        params: Params = None,
        *,
        speculative: bool = True,
        hints: Hints = NO_HINTS,
        prompt_logprobs: int | None = None,
        marks: Sequence[str] = (),
        **sampling: Unpack[SamplingOptions],
    ) -> int:
        """Queue a request and return its id; it starts when a row is free.

        `step` returns its tokens; `completion` returns its result once and forgets it. With
        `prompt_logprobs` it holds the log probability of each prompt token but the first, with so
        many alternatives; all of the prompt is run for that. `marks` begin what is not prose, such as
        tool calls: behind one, stop strings do not count, and special tokens among them stay in the text.

        Raises:
            ForerunError: as `generate` does for a bad prompt or bad parameters.
        """
        running = self._take(
            prompt, params, sampling, speculative, hints, prompt_logprobs, tuple(marks)
        )
        return self._added.add(running)

    def step(self) -> list[TokenEvent]:
        """Run one round over all requests that can run; return the new tokens of those made with `add`.

        A request that fails, for example because its mask hook raises, ends alone: its finish
        reason is ERROR, and its completion holds the error.
        """
        return self._added.step()

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is also a sequence of texts
        self,
        prompts: str | Sequence[int] | Sequence[Message],
        params: Params | Iterable[Params] = None,
        *,
        speculative: bool = True,
        hints: Hints | Iterable[Hints] = NO_HINTS,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: Iterable[Prompt],
        params: Params | Iterable[Params] = None,
        *,
        speculative: bool = True,
        hints: Hints | Iterable[Hints] = NO_HINTS,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: Params | Iterable[Params] = None,
        *,
        speculative: bool = True,
        hints: Hints | Iterable[Hints] = NO_HINTS,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion | list[Completion]:
        """Complete one prompt or several, running as many at once as there are rows.

        Args:
            prompts: a prompt, or a list of them. A prompt is text, a list of token ids, or the
                messages of a conversation (which the tokenizer's chat template turns into text).
            params: complete parameters, one set for all prompts or a list with one for each; by
                default the model's own.
            speculative: draft for these requests.
            hints: for the drafter, one for all prompts or a list with one for each.
            sampling: options of `SamplingParams` by name, which override those: `temperature=0`.

        Returns:
            A completion for one prompt; for a list, a list in the same order.

        Raises:
            ForerunError: for a bad prompt before anything runs; an error in a request ends all.
        """
        all_prompts, single = split(prompts)
        all_params = self._intake.all_params(params, sampling, len(all_prompts))
        all_hints = repeated(hints, Hints, len(all_prompts), "hints")
        with self._scheduler.alone():
            requests = [
                self._intake.take(prompt, own, speculative, hint)
                for prompt, own, hint in zip(all_prompts, all_params, all_hints, strict=True)
            ]
        completions = run_all(self._scheduler, requests)
        return completions[0] if single else completions

    def chat(
        self,
        messages: Sequence[Message],
        params: Params = None,
        *,
        template_vars: Mapping[str, Any] | None = None,
        speculative: bool = True,
        hints: Hints = NO_HINTS,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion:
        """Answer a conversation.

        Args:
            messages: mappings with `role` and `content`.
            params, speculative, hints, sampling: as in `generate`.
            template_vars: variables of the chat template, such as `{"enable_thinking": False}`.

        Raises:
            ForerunError: for messages that the chat template refuses, a variable that it does not
                read, a tokenizer without a template, and as `generate` does.
        """
        prompt = self._intake.prompts.read_messages(messages, template_vars)
        return self.generate(prompt, params, speculative=speculative, hints=hints, **sampling)

    def stream(
        self,
        prompt: Prompt,
        params: Params = None,
        *,
        speculative: bool = True,
        hints: Hints = NO_HINTS,
        **sampling: Unpack[SamplingOptions],
    ) -> Stream:
        """Complete one prompt, token by token.

        It is queued when the first token is requested; leaving the loop early cancels it.

        Raises:
            ForerunError: as `generate` does for a bad prompt or bad parameters.
        """
        running = self._take(prompt, params, sampling, speculative, hints)
        return Stream(running, follow(self._scheduler, running))

    def stream_plain(
        self, prompt: Prompt, params: Params = None, **sampling: Unpack[SamplingOptions]
    ) -> Stream:
        """Complete one prompt by the plain loop, without drafter or rounds: the baseline to compare with.

        Raises:
            ConfigError: when the first token is requested and no row is free.
        """
        running = self._take(prompt, params, sampling, speculative=False)
        return Stream(running, follow_plain(self._scheduler, running))

    def completion(self, request_id: int) -> Completion:
        """The result so far of a request made with `add`; if it has ended, it is returned only once.

        Raises:
            ConfigError: for a request that is not known, or no longer.
        """
        return self._added.completion(request_id)

    def cancel(self, request_id: int) -> bool:
        """End a waiting or running request and free its row; return False if it has already ended."""
        return self._scheduler.cancel(request_id)

    def use_seeds(self, source: Callable[[], int] = fresh_seed) -> None:
        """Give requests without a seed one from `source`, so that a run can be repeated.

        Raises:
            ConfigError: for a source that is not a function.
        """
        if not callable(source):
            raise ConfigError(f"source is {shown(source)}; it must be a function that gives seeds.")
        self._intake.next_seed = source

    def watch_rounds(
        self, see: OnRound | None, on_forward: Callable[[], None] | None = None
    ) -> None:
        """Call `see` (a function or None) after every round, with its drafts, verdicts and seconds by stage.

        `on_forward` is called before a model drafts, and before each forward pass of the target,
        during which other threads can run Python.

        Raises:
            ConfigError: for a hook that is not a function.
        """
        for name, hook in {"see": see, "on_forward": on_forward}.items():
            if hook is not None and not callable(hook):
                raise ConfigError(f"{name} is {shown(hook)}; it must be a function or None.")
        self._parts.on_round, self._parts.on_forward = see, on_forward

    @contextmanager
    def idle_cache(self) -> Iterator[Cache]:
        """The target's cache, for other uses of the target inside the block.

        All rows are emptied before and after.

        Raises:
            ConfigError: while requests wait or run.
        """
        with self._scheduler.alone():
            self._refuse_work("the cache cannot be used")
            self._scheduler.forget()
            try:
                yield self._parts.cache
            finally:
                self._scheduler.forget()

    @contextmanager
    def untaught(self) -> Iterator[None]:
        """Plan rounds inside the block by policy `fixed`; the engine's own policy learns nothing from them.

        Raises:
            ConfigError: while requests wait or run.
        """
        with self._scheduler.alone():
            self._refuse_work("the policy cannot be exchanged")
            self._parts.policy = NoPolicy() if self.policy is None else FixedPolicy()
        try:
            yield
        finally:
            self._parts.policy = self._policy

    def close(self) -> None:
        """End all requests and save what policy `auto` has learned. May be called twice."""
        self._scheduler.drop([*self._scheduler.waiting, *self._scheduler.admitted])
        self._policy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_work(self, what: str) -> None:
        if self._scheduler.has_work:
            raise ConfigError(f"{what} while requests wait or run; finish or cancel them first.")

    @property
    def exactness(self) -> Exactness:
        """Exactness of the output, compared with plain decoding with the whole cache.

        It is the target's, unless the drafter, the named rule or the cache changes the
        distribution.
        """
        return self._parts.exactness

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The sampling parameters that apply unless a request sets them, by name."""
        return dict(self._intake.sampling_defaults)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def ended(self) -> list[int]:
        """Ids of requests made with `add` that have ended and whose completions have not been returned."""
        return self._added.ended

    @property
    def stats(self) -> Stats:
        """Counters of all requests of this engine, running ones included."""
        running = (running.stats for running in self._scheduler.admitted)
        return Stats.total([self._scheduler.past, *running])

    def _take(
        self,
        prompt: Prompt,
        params: Params,
        sampling: Mapping[str, Any],
        speculative: bool,
        hints: Hints = NO_HINTS,
        prompt_logprobs: int | None = None,
        marks: tuple[str, ...] = (),
    ) -> Running:
        complete = self._intake.params_of(params, sampling)
        with self._scheduler.alone():
            return self._intake.take(prompt, complete, speculative, hints, prompt_logprobs, marks)
