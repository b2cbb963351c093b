"""Text of a stream of tokens: incomplete characters are held back, stop strings are found.

Whatever the tokens are, the text equals the tokenizer's text for all of them at once, cut at a stop
string. `tokenizers.decoders.DecodeStream` does not promise that: if a tokenizer spells characters
in byte tokens (Llama 2), it releases bytes that later ones can turn into replacement characters,
and then fails; and it cannot be flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

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


class Decoder:
    """Decodes tokens of one tokenizer to text without special tokens.

    Args:
        tokenizer: the tokenizer.
        kept: texts of special tokens that stay in the text.

    Attributes:
        decode: the text of tokens. For one token at a time, the code of transformers around its fast
            tokenizers takes ten times as long as the tokenizers themselves, and is left out.
        num_chars: the number of characters of that text.
        joins: the text of tokens is that of each, joined, wherever a character ends.
        special: ids of the tokens that never occur in text, by name.
    """

    def __init__(self, tokenizer: Tokenizer, kept: Sequence[str] = ()) -> None:
        self._fast: Any = getattr(tokenizer, "backend_tokenizer", None)
        cleans_up = getattr(tokenizer, "clean_up_tokenization_spaces", True)
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.special = {token.content: number for number, token in added.items() if token.special}
        skipped = {number for text, number in self.special.items() if text not in kept}
        keeps = len(skipped) < len(self.special)
        source = tokenizer if self._fast is None or cleans_up else self._fast
        decode = partial(source.decode, skip_special_tokens=not keeps)
        self.decode: Callable[[Sequence[int]], str] = decode
        if keeps or source is tokenizer:
            self.decode = lambda ids: decode([one for one in ids if one not in skipped])
        kind = type(getattr(self._fast, "decoder", None)).__name__
        self.joins = kind == "ByteLevel" and not cleans_up
        self.num_chars = lru_cache(2**14)(lambda ids: len(self.decode(ids)))

    def is_byte(self, token_id: int) -> bool:
        """True for a token that is one byte of a missing character, such as `<0xE6>`."""
        name = None if self._fast is None else self._fast.id_to_token(token_id)
        return name is not None and len(name) == 6 and name.startswith("<0x")


@dataclass(frozen=True, slots=True)
class TextState:
    """State of a text; a value, so that a round can be tried and discarded.

    Args:
        text: the certain text, up to the stop string.
        released: characters of `text` that a `Preview` has shown.
        context: the tokens decoded last; some tokenizers merge spaces across tokens.
        known: number of characters that `context` alone decodes to.
        held: tokens after those, whose text could still change.
        stopped: a stop string is complete.
        marked: a mark has come, behind which stop strings do not count.
    """

    text: str = ""
    released: int = 0
    context: tuple[int, ...] = ()
    known: int = 0
    held: tuple[int, ...] = ()
    stopped: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True)
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
        decoder: None makes no text.
        stop: strings at which the text ends; they are not part of it.
        marks: strings behind which it does not, for what follows is not prose but a tool call.
    """

    def __init__(
        self, decoder: Decoder | None, stop: Sequence[str] = (), marks: Sequence[str] = ()
    ) -> None:
        self.state = TextState()
        self._stop, self._marks = tuple(stop), tuple(marks) if stop else ()
        self._longest_stop = max(map(len, self._stop), default=0)
        self._decoder = decoder

    @property
    def text(self) -> str:
        """The text of all committed tokens, up to the stop string."""
        state = self.state
        if state.stopped or self._decoder is None:
            return state.text
        return state.text + self._decoder.decode(state.context + state.held)[state.known :]

    def preview(self, token_ids: Sequence[int], final: bool = False) -> Preview:
        """The text that these tokens would make certain after the committed ones.

        Text that could be the beginning of a stop string, or of a character, is held back.

        Args:
            token_ids: the next tokens.
            final: the text ends with the last of them, so that nothing is held back there.
        """
        decoder = self._decoder
        if decoder is None:
            return Preview(("",) * len(token_ids), self.state)
        text, released, stopped = self.state.text, self.state.released, False
        marked = self.state.marked
        context, known, held = self.state.context, self.state.known, self.state.held
        texts: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            last = final and count == len(token_ids)
            held += (token_id,)
            new = decoder.decode(context + held)[known:]
            certain = new if last else new.rstrip(_REPLACEMENT)
            stop = None if marked else _find(self._stop, text, certain)
            mark = None if marked else _find(self._marks, text, certain)
            if mark is not None and (stop is None or mark < stop):
                marked, stop = True, None
            if stop is not None:
                text, held, stopped = (text + new)[:stop], (), True
            elif last or (new and new[-1] != _REPLACEMENT and _ends_bytes(decoder, held)):
                text += new
                context, known = ((), 0) if decoder.joins else (held, decoder.num_chars(held))
                held = ()
            end = len(text) - (0 if stopped or marked or last else self._open_stop(text))
            texts.append(text[released:end])
            released = max(released, end)
            if stopped:
                break
        state = TextState(text, released, context, known, held, stopped, marked)
        return Preview(tuple(texts), state)

    def _open_stop(self, text: str) -> int:
        """Number of last characters that could begin a stop string."""
        for count in range(min(self._longest_stop - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stop):
                return count
        return 0


def _find(wanted: Sequence[str], text: str, new: str) -> int | None:
    """Index at which the first of some strings begins that `new` completes."""
    if not wanted:
        return None
    start = max(0, len(text) - max(map(len, wanted)) + 1)
    tail = text[start:] + new
    places = [tail.index(one) for one in wanted if one in tail]
    return start + min(places) if places else None


def _ends_bytes(decoder: Decoder, held: tuple[int, ...]) -> bool:
    """True if the last token is outside any run of byte tokens.

    The tokenizer decodes a run as a whole, ignoring special tokens in it, and its next byte can
    break all of it.
    """
    if decoder.joins:
        return True
    alone = len(held) == 1
    return not decoder.is_byte(held[-1]) and (alone or bool(decoder.decode(held[-1:])))
