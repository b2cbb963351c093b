"""Intake of requests: from a prompt and parameters to a request that can run, or a typed error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from forerun.contracts import CausalLM
from forerun.core import NO_HINTS, Hints, Request, Stats
from forerun.engine.prompts import Prompt, PromptReader, listed, repeated
from forerun.engine.requests import Running
from forerun.engine.text import Decoder, TextStream, Tokenizer
from forerun.errors import ConfigError, PromptError, shown
from forerun.options import check, named
from forerun.params import SamplingParams
from forerun.randomness import fresh_seed
from forerun.sampling import check_token_ids

Params = SamplingParams | Mapping[str, Any] | None
"""Complete parameters, or some that override the model's own defaults."""

_ELSEWHERE = {
    "do_sample": "a temperature here: 0 takes the most likely token, any other samples",
    "tools": "a variable of the chat template: engine.chat(..., template_vars={'tools': ...})",
    "stream": "a method: engine.stream(prompt)",
    "num_return_sequences": "a list here: give the prompt as often as you want answers",
}


@dataclass
class Intake:
    """Checks requests and numbers them.

    Args:
        target: the model that they are for.
        tokenizer: None accepts only token ids.
        eos_token_ids: tokens that end a text.
        max_context: most prompt and output tokens of a request.
        sampling_defaults: parameters that apply unless a request sets them, by name.
        next_seed: returns the seed of a request that has none.
    """

    target: CausalLM
    tokenizer: Tokenizer | None
    eos_token_ids: frozenset[int]
    max_context: int
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    next_seed: Callable[[], int] = fresh_seed
    next_id: int = 0

    def __post_init__(self) -> None:
        self.prompts = PromptReader(self.tokenizer, self.target.vocab_size)
        self._decoder = None if self.tokenizer is None else Decoder(self.tokenizer)
        self._decoders: dict[tuple[str, ...], Decoder | None] = {(): self._decoder}

    def take(
        self,
        prompt: Prompt,
        params: SamplingParams,
        speculative: bool,
        hints: Hints = NO_HINTS,
        prompt_logprobs: int | None = None,
        marks: tuple[str, ...] = (),
    ) -> Running:
        """Make a request.

        Raises:
            PromptError: for an empty or invalid prompt, or one that leaves no room for a token.
            ConfigError: for parameters or hints of a wrong type, token ids outside the vocabulary,
                or stop strings without a tokenizer.
        """
        speculative = check("speculative", speculative, bool)
        token_ids = self.prompts.read(prompt)
        room = self.max_context - len(token_ids)
        if room < 1:
            over = "1 token" if room == 0 else f"{1 - room} tokens"
            raise PromptError(
                f"the prompt has {len(token_ids)} tokens and the context {self.max_context}, one of them "
                f"for output: {over} too many; shorten it (of a conversation, drop the oldest messages) "
                "or raise max_context."
            )
        check_token_ids(params, self.target.vocab_size)
        known = {} if self._decoder is None else self._decoder.special
        if params.stop and self._decoder is None:
            raise ConfigError("stop strings need a tokenizer; use stop_token_ids instead.")
        ends: frozenset[int] = frozenset() if params.ignore_eos else self.eos_token_ids
        # Texts do not contain special tokens, so a stop string that is one is searched for by its id.
        special = {known[text] for text in params.stop if text in known}
        request = Request(
            request_id=self.next_id,
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            params=params,
            seed=self._fresh_seed() if params.seed is None else params.seed,
            speculative=speculative,
            stop_token_ids=ends | special | frozenset(params.stop_token_ids),
            hints=self._read(hints),
        )
        self.next_id += 1
        return Running(
            request=request,
            token_limit=min(params.max_tokens or room, room),
            stream=TextStream(self._decoder_with(marks), params.stop, marks),
            stats=Stats(prompt_tokens=len(token_ids)),
            num_prompt_logprobs=check("prompt_logprobs", prompt_logprobs, int | None, ge=0),
        )

    def _decoder_with(self, marks: tuple[str, ...]) -> Decoder | None:
        """The decoder that keeps the special tokens among some marks."""
        if self.tokenizer is not None and marks not in self._decoders:
            self._decoders[marks] = Decoder(self.tokenizer, marks)
        return self._decoders.get(marks)

    def _fresh_seed(self) -> int:
        seed: int = check("a seed of the source", self.next_seed(), int)
        return seed

    def params_of(self, params: Params, sampling: Mapping[str, Any]) -> SamplingParams:
        """Complete parameters: the given ones or the model's defaults, with single options on top.

        Raises:
            ConfigError: for anything but parameters, and for a value that is not allowed.
            UnknownNameError: for an option that does not exist.
        """
        self._explain(sampling)
        if params is None or isinstance(params, Mapping):
            own = {} if params is None else named(params)
            return SamplingParams(**{**self.sampling_defaults, **own, **sampling})
        if not isinstance(params, SamplingParams):
            raise ConfigError(
                f"params are {shown(params)}; they must be SamplingParams or a mapping."
            )
        return replace(params, **sampling) if sampling else params

    def _explain(self, sampling: Mapping[str, Any]) -> None:
        """Refuse options that are set elsewhere, saying where.

        Raises:
            ConfigError: for the first of them.
        """
        known = {field.name for field in fields(SamplingParams)}
        for name in sampling:
            way = _ELSEWHERE.get(name)
            if name not in known and name in self.prompts.template_variables:
                way = f"a variable of the chat template: engine.chat(..., template_vars={{{name!r}: ...}})"
            if way is not None:
                raise ConfigError(f"{name} is not a sampling parameter; it is {way}.")

    def all_params(
        self, params: Params | Iterable[Params], sampling: Mapping[str, Any], count: int
    ) -> list[SamplingParams]:
        """Parameters for each of `count` prompts, from one set or from one per prompt.

        Raises:
            ConfigError, UnknownNameError: as `params_of` does, and for another number.
        """
        if not isinstance(params, Iterable) or isinstance(params, (str, Mapping)):
            return [self.params_of(params, sampling)] * count
        what = "sets of parameters"
        every = [self.params_of(own, sampling) for own in listed(params, what)]
        return repeated(every, SamplingParams, count, what)

    def _read(self, hints: Hints) -> Hints:
        """The hints with their prediction as token ids."""
        if not isinstance(hints, Hints):
            raise ConfigError(f"hints are a forerun.core.Hints, not {type(hints).__name__}.")
        if not isinstance(hints.namespace, str):
            raise ConfigError(f"a namespace is a text, not {type(hints.namespace).__name__}.")
        check("num_speculative_tokens", hints.num_speculative_tokens, int | None, ge=1)
        return replace(hints, prediction=self.prompts.read_prediction(hints.prediction))
