"""What a model goes on from where it writes prompts by itself, and where those end.

Of a chat model it is the chat template up to where a user's text begins: what it writes there is what
it takes for a user's question (Magpie, arXiv 2406.08464).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.engine.chat import ChatTemplate, Message, encode_text
from forerun.errors import PromptError

# Stands for the user's text in a template that is to be cut there.
_MARK = "forerun-user-text"


@dataclass(frozen=True)
class Opening:
    """The beginning of a prompt that a model writes.

    Args:
        token_ids: what it goes on from.
        stop_token_ids, stop: what ends the prompt, beside the end of a text.
    """

    token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


def asking(question: str, system: str | None) -> list[Message]:
    """The messages of a conversation that begins with a question."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": question}]


def chat_opening(
    tokenizer: Any, template: ChatTemplate, system: str | None, variables: Mapping[str, Any]
) -> Opening:
    """The template up to the user's text; the prompt ends with the first token after that, or where that
    is no special one, with the first word after it.

    Raises:
        PromptError: for a template that refuses the messages, or does not show the text once.
        UnknownNameError, ConfigError: for a variable that it does not read.
    """
    text = template.render(asking(_MARK, system), variables)
    before, found, after = text.partition(_MARK)
    if not found or _MARK in after:
        raise PromptError(
            "the chat template does not write a user's text once and as it is, so the model cannot go on "
            "from there; give a file of prompts."
        )
    # A space before the text belongs to its first token, line breaks do not.
    token_ids = tuple(tokenizer.encode(before.rstrip(" "), add_special_tokens=False))
    if not token_ids:
        return text_opening(tokenizer, ())
    behind = tokenizer.encode(after, add_special_tokens=False)
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", ())}
    if behind and behind[0] in special:
        return Opening(token_ids, (behind[0],))
    return Opening(token_ids, (), tuple(after.split()[:1]))


def text_opening(tokenizer: Any, eos_token_ids: Iterable[int]) -> Opening:
    """The beginning of a text, for a base model: BOS, else the token that ends the text before, else a
    line break."""
    bos = getattr(tokenizer, "bos_token_id", None)
    first = [bos] if bos is not None else sorted(eos_token_ids)[:1]
    return Opening(tuple(first or encode_text(tokenizer, "\n")))
