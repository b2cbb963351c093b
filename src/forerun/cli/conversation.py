"""A conversation: its messages, and prompts that continue the cached text of the last answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forerun.cli.prompt import SentPrompt
from forerun.engine.chat import ChatTemplate, check_messages, text_of
from forerun.errors import PromptError

if TYPE_CHECKING:
    from forerun.engine.requests import Completion
    from forerun.kv_cache.session_file import Session

# Of a session's notes.
_NOTE = "conversation"


class Conversation:
    """Messages that grow turn by turn.

    Args:
        tokenizer: of transformers.
        template: its chat template.
        variables: of the template.
        messages: to begin with.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: ChatTemplate,
        variables: Mapping[str, Any],
        messages: list[dict[str, Any]],
    ) -> None:
        self.messages = messages
        self._tokenizer, self._template, self._variables = tokenizer, template, variables
        added = tokenizer.added_tokens_decoder.items()
        self._special = {number: token.content for number, token in added if token.special}
        # The last prompt with its answer, as text and as the tokens that the cache holds.
        self._text, self._token_ids = "", list[int]()

    def prompt(self, question: Mapping[str, Any], *, alone: bool = False) -> SentPrompt:
        """The prompt for an answer to `question` after all messages, which stay as they are.

        Args:
            alone: after the system message only.

        Raises:
            PromptError: where the template refuses it.
        """
        messages = [*self.messages[: self._start if alone else None], question]
        text = self._template.render(messages, self._variables)
        token_ids = self._continued(text) or self._template.encode(messages, self._variables)
        return SentPrompt(text, token_ids, template=True)

    def keep(self, question: Mapping[str, Any], prompt: SentPrompt, completion: Completion) -> None:
        """Add a question and its answer."""
        self.messages += [dict(question), {"role": "assistant", "content": completion.text}]
        self._text, self._token_ids = "", []
        answer = list(completion.token_ids)
        # The template writes the end of a message by itself.
        while answer and answer[-1] in self._special:
            answer.pop()
        # Not so where a stop string has cut the text.
        spelled = self._special.keys().isdisjoint(answer)
        if spelled and self._tokenizer.decode(answer) == completion.text:
            self._text = prompt.text + completion.text
            self._token_ids = prompt.token_ids + answer

    @property
    def notes(self) -> dict[str, str]:
        """The conversation as notes of a session."""
        state = {"messages": self.messages, "text": self._text, "token_ids": self._token_ids}
        return {_NOTE: json.dumps(state, ensure_ascii=False)}

    def restore(self, session: Session) -> None:
        """Continue the conversation that a session holds.

        Raises:
            PromptError: where it is of something else.
        """
        if _NOTE not in session.notes:
            raise PromptError(
                "the session holds no conversation but a text; give its messages with --messages, or "
                "another session."
            )
        try:
            state = json.loads(session.notes[_NOTE])
            messages = check_messages(state["messages"]) if state["messages"] else []
            text, token_ids = str(state["text"]), [int(token) for token in state["token_ids"]]
        except (ValueError, TypeError, KeyError) as error:
            raise PromptError(
                f"the conversation in the session cannot be read ({error}); give another session."
            ) from error
        self.messages, self._text, self._token_ids = messages, text, token_ids

    def set_system(self, text: str) -> None:
        """Set or replace the system message."""
        self.messages[: self._start] = [{"role": "system", "content": text}]

    @property
    def system(self) -> str | None:
        """The text of the system message."""
        first = self.messages[0] if self.messages else {}
        return text_of(first) if first.get("role") == "system" else None

    def reset(self) -> None:
        """Forget all messages but the system message."""
        del self.messages[self._start :]

    def drop_oldest(self) -> None:
        """Forget the oldest turn: a message of the user and what answered it."""
        start = self._start
        del self.messages[start]
        while start < len(self.messages) and self.messages[start]["role"] != "user":
            del self.messages[start]

    @property
    def _start(self) -> int:
        """Index of the first turn."""
        return int(self.system is not None)

    def _continued(self, text: str) -> list[int] | None:
        """The tokens of a prompt that continues the last answer, with the answer's own tokens.

        Encoded anew its text could become other tokens, which are not in the cache. None if the prompt
        does not continue it, or no special token follows it.
        """
        rest = text[len(self._text) :]
        if not self._text or not text.startswith(self._text):
            return None
        if not rest.startswith(tuple(self._special.values())):
            return None
        return self._token_ids + list(self._tokenizer.encode(rest, add_special_tokens=False))
