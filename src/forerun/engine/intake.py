"""From a prompt and parameters to a request that can run, or a typed error."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from forerun.contracts import CausalLM
from forerun.core import NO_HINTS, Hints, Request, Stats
from forerun.engine.chat import encode_text
from forerun.engine.requests import Running
from forerun.engine.text import TextStream, Tokenizer
from forerun.errors import ConfigError, ForerunError, PromptError, shown
from forerun.options import check
from forerun.params import SamplingParams
from forerun.randomness import fresh_seed
from forerun.sampling import check_token_ids

Prompt = str | Iterable[int]

T = TypeVar("T")


@dataclass
class Intake:
    """Checks requests and numbers them.

    Args:
        target: the model that they are for.
        tokenizer: None takes token ids only.
        eos_token_ids: tokens that end a text.
        max_context: prompt and output tokens of a request at most.
        next_seed: where a request without a seed gets one.
    """

    target: CausalLM
    tokenizer: Tokenizer | None
    eos_token_ids: frozenset[int]
    max_context: int
    next_seed: Callable[[], int] = fresh_seed
    next_id: int = 0

    def take(
        self, prompt: Prompt, params: SamplingParams, speculative: bool, hints: Hints = NO_HINTS
    ) -> Running:
        """Make a request.

        Raises:
            PromptError: for an empty or invalid prompt, or one that leaves no room for a token.
            ConfigError: for parameters or hints of a wrong type, token ids outside the vocabulary, or
                stop strings without a tokenizer.
        """
        if not isinstance(params, SamplingParams):
            raise ConfigError(f"params are {shown(params)}; they must be SamplingParams.")
        speculative = check("speculative", speculative, bool)
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
        ends: frozenset[int] = frozenset() if params.ignore_eos else self.eos_token_ids
        request = Request(
            request_id=self.next_id,
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            params=params,
            seed=self.next_seed() if params.seed is None else params.seed,
            speculative=speculative,
            stop_token_ids=ends | frozenset(params.stop_token_ids),
            hints=self._read(hints),
        )
        self.next_id += 1
        room = self.max_context - len(token_ids)
        return Running(
            request=request,
            token_limit=min(params.max_tokens or room, room),
            stream=TextStream(self.tokenizer, params.stop),
            stats=Stats(prompt_tokens=len(token_ids)),
        )

    def _read(self, hints: Hints) -> Hints:
        """The hints with their prediction as token ids."""
        if not isinstance(hints, Hints):
            raise ConfigError(f"hints are a forerun.core.Hints, not {type(hints).__name__}.")
        if not isinstance(hints.namespace, str):
            raise ConfigError(f"a namespace is a text, not {type(hints.namespace).__name__}.")
        if isinstance(hints.prediction, str) and not hints.prediction:
            return replace(hints, prediction=())
        return replace(hints, prediction=tuple(self._encode(hints.prediction, "prediction")))

    def _encode(self, prompt: Prompt, what: str = "prompt") -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ConfigError(f"a {what} as text needs a tokenizer; give token ids instead.")
            try:
                prompt.encode("utf-8")
            except UnicodeEncodeError as error:
                raise PromptError(f"the {what} is not valid UTF-8 ({error.reason}).") from error
            if what == "prompt":
                return encode_text(self.tokenizer, prompt)
            # What opens a prompt does not open an output.
            return list(self.tokenizer.encode(prompt, add_special_tokens=False))
        if isinstance(prompt, (bytes, bytearray)):
            raise PromptError(f"the {what} is bytes; decode it, or give a list of token ids.")
        try:
            token_ids = [operator.index(token) for token in prompt]
        except Exception as error:
            raise PromptError(
                f"a {what} is a text or a list of token ids, whole numbers ({error})."
            ) from error
        size = self.target.vocab_size
        for token in token_ids:
            if not 0 <= token < size:
                raise PromptError(
                    f"the {what} holds token id {token}; this model's ids are 0 to {size - 1}."
                )
        return token_ids


def repeated(value: T | Iterable[T], kind: type[T], count: int, what: str) -> list[T]:
    """A value for each of `count` prompts: one for all of them, or as many as there are.

    Raises:
        ConfigError: for another number, or values of another type.
    """
    values = [value] * count if isinstance(value, kind) else listed(value, what)
    wrong = [other for other in values if not isinstance(other, kind)]
    if wrong:
        raise ConfigError(f"{what} are {kind.__name__}, not {type(wrong[0]).__name__}.")
    if len(values) != count:
        raise ConfigError(f"there are {count} prompts but {len(values)} {what}; give one for each.")
    return values


def listed(value: Any, what: str, error: type[ForerunError] = ConfigError) -> list[Any]:
    """The entries of a collection.

    Raises:
        ForerunError: of the kind `error`, for text and for what is not a collection.
    """
    try:
        # A 0-d array is iterable until it is asked.
        if not isinstance(value, str):
            return list(value)
        problem = None
    except Exception as raised:
        problem = raised
    raise error(f"{what} are {shown(value)}; put them into a list.") from problem
