"""Prompts in all their forms (text, token ids, messages), and their token ids."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from forerun.engine.chat import ChatTemplate, Message, encode_text
from forerun.engine.text import Tokenizer
from forerun.errors import ConfigError, ForerunError, PromptError, shown

Prompt = str | Iterable[int] | Sequence[Message]
"""Text, token ids, or the messages of a conversation."""

T = TypeVar("T")


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


def listed(value: Any, what: str, error: type[ForerunError] = ConfigError) -> list[Any]:
    """The entries of a collection.

    Raises:
        ForerunError: of the kind `error`, for text and for anything but a collection.
    """
    try:
        # A 0-d array claims to be iterable.
        if not isinstance(value, str):
            return list(value)
        problem = None
    except Exception as raised:
        problem = raised
    raise error(f"{what} are {shown(value)}; put them into a list.") from problem


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
