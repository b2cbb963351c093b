"""Opening of a prompt that the model itself writes, and the tokens that end the prompt.

The opening for a chat model is the chat template up to the user's text. What the model writes there is
what it expects as a user's question (Magpie, arXiv 2406.08464).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.engine.chat import ChatTemplate, Message, encode_text
from forerun.errors import PromptError

# Placeholder for the user's text, at which the rendered template is cut.
_MARK = "forerun-user-text"


@dataclass(frozen=True)
class Opening:
    """The beginning of a prompt that a model writes.

    Args:
        token_ids: tokens that the model continues.
        stop_token_ids, stop: tokens and strings that end the prompt, besides the end of a text.
    """

    token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


def asking(question: str, system: str | None) -> list[Message]:
    """Messages of a conversation that begins with a question."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": question}]


def chat_opening(
    tokenizer: Any, template: ChatTemplate, system: str | None, variables: Mapping[str, Any]
) -> Opening:
    """The chat template up to the user's text, as an opening.

    The prompt ends at the template's first token after the text. If that is no special token, the prompt
    ends at the first word after the text.

    Raises:
        PromptError: for a template that refuses the messages, or does not show the text exactly once.
        UnknownNameError, ConfigError: for a variable that the template does not read.
    """
    text = template.render(asking(_MARK, system), variables)
    before, found, after = text.partition(_MARK)
    if not found or _MARK in after:
        raise PromptError(
            "the chat template does not write a user's text once and as it is, so the model cannot go on "
            "from there; give a file of prompts."
        )
    # A space before the text belongs to the text's first token; line breaks do not.
    token_ids = tuple(tokenizer.encode(before.rstrip(" "), add_special_tokens=False))
    if not token_ids:
        return text_opening(tokenizer, ())
    behind = tokenizer.encode(after, add_special_tokens=False)
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", ())}
    if behind and behind[0] in special:
        return Opening(token_ids, (behind[0],))
    return Opening(token_ids, (), tuple(after.split()[:1]))


def text_opening(tokenizer: Any, eos_token_ids: Iterable[int]) -> Opening:
    """The opening of a text for a base model: BOS, else an end-of-text token, else a line break."""
    bos = getattr(tokenizer, "bos_token_id", None)
    first = [bos] if bos is not None else sorted(eos_token_ids)[:1]
    return Opening(tuple(first or encode_text(tokenizer, "\n")))
