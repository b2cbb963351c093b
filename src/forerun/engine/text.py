"""Text of a stream of tokens: incomplete characters are held back, stop strings are found.

Whatever the tokens are, the text equals the tokenizer's text for all of them at once, cut at a stop
string. `tokenizers.decoders.DecodeStream` does not promise that: if a tokenizer spells characters
in byte tokens (Llama 2), it releases bytes that later ones can turn into replacement characters,
and then fails; and it cannot be flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A model may emit escape sequences; they are shown and not obeyed.
VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
# For text that must stay on one line.
ON_ONE_LINE = VISIBLE | {ord("\n"): 0x2424, ord("\t"): 0x2409}


class Tokenizer(Protocol):
    """The methods that are needed of a tokenizer; those of transformers have them."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""


@dataclass(frozen=True)
class TextState:
    """State of a text; a value, so that a round can be tried and discarded.

    Args:
        text: the certain text, up to the stop string.
        released: characters of `text` that a `Preview` has shown.
        context: the tokens decoded last; some tokenizers merge spaces across tokens.
        known: number of characters that `context` alone decodes to.
        held: tokens after those, whose text could still change.
        stopped: a stop string is complete.
    """

    text: str = ""
    released: int = 0
    context: tuple[int, ...] = ()
    known: int = 0
    held: tuple[int, ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class Preview:
    """The effect of further tokens on a text.

    Args:
        texts: the text that becomes certain with each token; one per token, or fewer if a stop
            string is complete before the last.
        state: the state to commit with the tokens.
    """

    texts: tuple[str, ...]
    state: TextState

    @property
    def stopped(self) -> bool:
        """True if the last token of `texts` completes a stop string."""
        return self.state.stopped


class TextStream:
    """The text of one request, token by token.

    `preview` changes nothing; assigning its `state` to the stream's own commits it.

    Args:
        tokenizer: None makes no text.
        stop: strings at which the text ends; they are not part of it.
    """

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str] = ()) -> None:
        self.state = TextState()
        self._stop = tuple(stop)
        self._longest_stop = max(map(len, self._stop), default=0)
        self._decode = None if tokenizer is None else _shortest_decode(tokenizer)
        self._is_byte = _byte_test(tokenizer)

    @property
    def text(self) -> str:
        """The text of all committed tokens, up to the stop string."""
        state = self.state
        if state.stopped or self._decode is None:
            return state.text
        return state.text + self._decode(state.context + state.held)[state.known :]

    def text_of(self, token_id: int) -> str:
        """The text of a single token."""
        return "" if self._decode is None else self._decode((token_id,))

    def preview(self, token_ids: Sequence[int], final: bool = False) -> Preview:
        """The text that these tokens would make certain after the committed ones.

        Text that could be the beginning of a stop string, or of a character, is held back.

        Args:
            token_ids: the next tokens.
            final: the text ends with the last of them, so that nothing is held back there.
        """
        if self._decode is None:
            return Preview(("",) * len(token_ids), self.state)
        text, released, stopped = self.state.text, self.state.released, False
        context, known, held = self.state.context, self.state.known, self.state.held
        texts: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            last = final and count == len(token_ids)
            held += (token_id,)
            new = self._decode(context + held)[known:]
            stop = self._find_stop(text, new if last else new.rstrip(_REPLACEMENT))
            if stop is not None:
                text, held, stopped = (text + new)[:stop], (), True
            elif last or (new and new[-1] != _REPLACEMENT and self._ends_bytes(held)):
                text, context, known, held = text + new, held, len(self._decode(held)), ()
            end = len(text) - (0 if stopped or last else self._open_stop(text))
            texts.append(text[released:end])
            released = max(released, end)
            if stopped:
                break
        return Preview(tuple(texts), TextState(text, released, context, known, held, stopped))

    def _ends_bytes(self, held: tuple[int, ...]) -> bool:
        """True if the last token is outside any run of byte tokens.

        The tokenizer decodes a run as a whole, ignoring special tokens in it, and its next byte can
        break all of it.
        """
        assert self._decode is not None
        alone = len(held) == 1
        return not self._is_byte(held[-1]) and (alone or bool(self._decode(held[-1:])))

    def _find_stop(self, text: str, new: str) -> int | None:
        """Index at which the first stop string begins that `new` completes."""
        if not self._stop:
            return None
        start = max(0, len(text) - self._longest_stop + 1)
        tail = text[start:] + new
        places = [tail.index(stop) for stop in self._stop if stop in tail]
        return start + min(places) if places else None

    def _open_stop(self, text: str) -> int:
        """Number of last characters that could begin a stop string."""
        for count in range(min(self._longest_stop - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stop):
                return count
        return 0


def special_tokens(tokenizer: Tokenizer | None) -> dict[str, int]:
    """Ids of the tokens that never occur in text, by name."""
    tokens: dict[str, int] = {}
    for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if token.special:
            tokens[token.content] = token_id
    return tokens


def _shortest_decode(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    """Returns the fastest decoder of token ids to text without special tokens.

    For one token at a time, the code of transformers around its fast tokenizers takes ten times as
    long as the tokenizers themselves.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or getattr(tokenizer, "clean_up_tokenization_spaces", True):
        return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)
    return lambda ids: str(fast.decode(ids, skip_special_tokens=True))


def _byte_test(tokenizer: Tokenizer | None) -> Callable[[int], bool]:
    """Returns a test for tokens that are one byte of a missing character, such as `<0xE6>`."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        return lambda _: False

    def is_byte(token_id: int) -> bool:
        name = fast.id_to_token(token_id)
        return name is not None and len(name) == 6 and name.startswith("<0x")

    return is_byte
