"""Intake of requests: from a prompt in any form and parameters to a request that can run, or an error."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from forerun.contracts import CausalLM
from forerun.core import NO_HINTS, Hints, Request, Stats
from forerun.engine.chat import ChatTemplate, Message, encode_text
from forerun.engine.requests import Running
from forerun.engine.text import Decoder, TextStream, Tokenizer
from forerun.errors import ConfigError, PromptError, counted, shown
from forerun.options import check, named
from forerun.params import SamplingParams
from forerun.randomness import fresh_seed
from forerun.sampling import check_token_ids

T = TypeVar("T")
Prompt = str | Iterable[int] | Sequence[Message]
"""Text, token ids, or the messages of a conversation."""
Params = SamplingParams | Mapping[str, Any] | None
"""Complete parameters, or some that override the model's own defaults."""

_ELSEWHERE = {
    "do_sample": "a temperature here: 0 takes the most likely token, any other samples",
    "tools": "a variable of the chat template: engine.chat(..., template_vars={'tools': ...})",
    "stream": "a method: engine.stream(prompt)",
    "num_return_sequences": "a list here: give the prompt as often as you want answers",
}


@dataclass(frozen=True)
class PromptReader:
    """Turns prompts into token ids.

    Args:
        tokenizer: None accepts only token ids.
        vocab_size: bound of token ids.
    """

    tokenizer: Tokenizer | None
    vocab_size: int

    def read(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt.

        Raises:
            PromptError: for anything but one prompt, or an empty one.
            ConfigError: for text without a tokenizer.
        """
        if isinstance(prompt, str):
            tokenizer = self._tokenizer_for("a prompt as text")
            token_ids = self._ids(encode_text(tokenizer, _text(prompt, "prompt")), "prompt")
        else:
            entries = _entries(prompt)
            if entries and isinstance(entries[0], Mapping):
                token_ids = self.read_messages(entries)
            elif entries and isinstance(entries[0], str):
                raise PromptError(
                    "the prompt is a list of texts where one is expected; give them to Engine.generate."
                )
            else:
                token_ids = self._ids(entries, "prompt")
        if not token_ids:
            raise PromptError("the prompt is empty; give at least one token to go on from.")
        return token_ids

    def read_messages(
        self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """The token ids of a conversation, by the tokenizer's chat template.

        Raises:
            PromptError: without a template, and as `ChatTemplate.encode` does.
            UnknownNameError, ConfigError: as `ChatTemplate.encode` does, and without a tokenizer.
        """
        template = ChatTemplate.of(self._tokenizer_for("a conversation"))
        if template is None:
            raise PromptError(
                "the tokenizer has no chat template, as that of a base model; give the prompt as text."
            )
        return self._ids(template.encode(messages, variables), "prompt")

    @property
    def template_variables(self) -> frozenset[str]:
        """Variables that the tokenizer's chat template reads; empty without a template."""
        template = ChatTemplate.of(self.tokenizer)
        return frozenset() if template is None else template.variables

    def read_prediction(self, prediction: str | Iterable[int]) -> tuple[int, ...]:
        """The token ids of an expected output, without the tokens that open a text.

        Raises:
            PromptError, ConfigError: as `read` does.
        """
        if not isinstance(prediction, str):
            return tuple(self._ids(_entries(prediction, "prediction"), "prediction"))
        if not prediction:
            return ()
        tokenizer = self._tokenizer_for("a prediction as text")
        text = _text(prediction, "prediction")
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    def _tokenizer_for(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise ConfigError(f"{what} needs a tokenizer; give token ids instead.")
        return self.tokenizer

    def _ids(self, entries: Iterable[Any], what: str) -> list[int]:
        try:
            token_ids = [operator.index(token) for token in entries]
        except Exception as error:
            raise PromptError(
                f"a {what} is a text or a list of token ids, whole numbers ({error})."
            ) from error
        for token in token_ids:
            if not 0 <= token < self.vocab_size:
                raise PromptError(
                    f"the {what} holds token id {token}; this model's ids are 0 to "
                    f"{self.vocab_size - 1}."
                )
        return token_ids


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
            raise PromptError(
                f"the prompt has {len(token_ids)} tokens and the context {self.max_context}, one of them "
                f"for output: {counted(1 - room, 'token')} too many; shorten it (of a conversation, drop the "
                "oldest messages) or raise max_context."
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


def split(prompts: Any) -> tuple[list[Any], bool]:
    """Prompts as a list, and True if they are a single one.

    Text, token ids and messages are one prompt; anything else is a collection of prompts.

    Raises:
        PromptError: for anything else.
    """
    if isinstance(prompts, str):
        return [prompts], True
    entries = _entries(prompts)
    first = entries[0] if entries else ()
    single = isinstance(first, Mapping) or _is_token(first)
    return ([entries], True) if single else (entries, False)


def repeated(value: T | Iterable[T], kind: type[T], count: int, what: str) -> list[T]:
    """A value for each of `count` prompts: one for all of them, or one for each.

    Raises:
        ConfigError: for another number, or values of another type.
    """
    if not isinstance(value, Iterable) or isinstance(value, str):
        value = [value] * count
    values = [value] * count if isinstance(value, kind) else listed(value, what)
    wrong = [other for other in values if not isinstance(other, kind)]
    if wrong:
        raise ConfigError(f"{what} are {kind.__name__}, not {type(wrong[0]).__name__}.")
    if len(values) != count:
        raise ConfigError(f"there are {count} prompts but {len(values)} {what}; give one for each.")
    return values


def listed(value: Any, what: str) -> list[Any]:
    """The entries of a collection.

    Raises:
        ConfigError: for text and for anything but a collection.
    """
    try:
        # A 0-d array claims to be iterable.
        if not isinstance(value, str):
            return list(value)
        problem = None
    except Exception as raised:
        problem = raised
    raise ConfigError(f"{what} are {shown(value)}; put them into a list.") from problem


def _text(text: str, what: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"the {what} is not valid UTF-8 ({error.reason}).") from error
    except Exception:
        raise PromptError(f"the {what} is text that cannot be read.") from None
    return text


def _entries(value: Any, what: str = "prompt") -> list[Any]:
    """The entries of a list, or of a tensor with one row."""
    if isinstance(value, (bytes, bytearray)):
        raise PromptError(f"the {what} is bytes; decode it, or give a list of token ids.")
    if isinstance(value, Mapping):
        raise PromptError(
            f"the {what} is a mapping; put a message into a list, and of a tokenizer's output give input_ids."
        )
    try:
        return list(value)
    except Exception:
        raise PromptError(
            f"the {what} is {shown(value)}; a prompt is text, a list of token ids, or a list of messages."
        ) from None


def _is_token(value: Any) -> bool:
    try:
        operator.index(value)
    except Exception:
        return False
    return True
