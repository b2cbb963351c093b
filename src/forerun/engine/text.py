"""From tokens to text, as they come: incomplete UTF-8 is held back, stop strings are found."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Protocol

# A character has at most four bytes; a token that ends in more broken ones will not be mended.
_HELD_BACK_AT_MOST = 4


class Tokenizer(Protocol):
    """What is needed of a tokenizer; those of transformers have it."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: Several[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""


class TextStream:
    """The text of one request, token by token.

    Args:
        tokenizer: None makes no text.
        stop: strings at which the text ends; they are not part of it.
    """

    def __init__(self, tokenizer: Tokenizer | None, stop: Several[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self._to_text = None if tokenizer is None else _plain_decode(tokenizer)
        self.text = ""
        self.stopped = False
        self._token_ids: list[int] = []
        self._decoded_from = 0
        self._decoded_to = 0
        self._released = 0

    def push(self, token_id: int) -> bool:
        """Take in a token; whether a stop string is now complete."""
        if self.tokenizer is None:
            return False
        self._token_ids.append(token_id)
        self._decode(flush=False)
        if not self.stopped and self.stop:
            self._find_stop()
        return self.stopped

    def release(self, finished: bool = False) -> str:
        """The text that has become certain since the last call. What could still turn out to be
        the beginning of a stop string or of a character stays back until `finished`."""
        if self.tokenizer is None:
            return ""
        if finished and not self.stopped:
            self._decode(flush=True)
        end = len(self.text) - (0 if finished or self.stopped else self._open_stop())
        text = self.text[self._released : max(end, self._released)]
        self._released += len(text)
        return text

    def _decode(self, flush: bool) -> None:
        """Decode what is new, with the tokens before it: some tokenizers merge spaces across."""
        assert self._to_text is not None
        known = self._to_text(self._token_ids[self._decoded_from : self._decoded_to])
        text = self._to_text(self._token_ids[self._decoded_from :])
        held = len(self._token_ids) - self._decoded_to
        if text.endswith("\N{REPLACEMENT CHARACTER}") and held < _HELD_BACK_AT_MOST and not flush:
            return
        self.text += text[len(known) :]
        self._decoded_from, self._decoded_to = self._decoded_to, len(self._token_ids)

    def _find_stop(self) -> None:
        longest = max(map(len, self.stop))
        start = max(0, self._released - longest)
        found = [at for at in (self.text.find(stop, start) for stop in self.stop) if at >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True

    def _open_stop(self) -> int:
        """How many of the last characters could begin a stop string."""
        longest = max(map(len, self.stop), default=0)
        for count in range(min(longest - 1, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-count:]) for stop in self.stop):
                return count
        return 0


def _plain_decode(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
    """Token ids to text without special tokens, by the shortest way: for a token at a time, what
    transformers does around its fast tokenizers takes ten times as long as they do."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or getattr(tokenizer, "clean_up_tokenization_spaces", True):
        return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
    return lambda ids: str(fast.decode(ids, skip_special_tokens=True))
