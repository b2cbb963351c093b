"""Conversion of the target's tokens to those of a draft model with another vocabulary."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from forerun.drafters.model.vocabulary import SharedVocabulary, SpelledVocabulary

# Number of draft tokens at the end of a text that may still change as it grows. Few words are longer.
_OPEN = 16
# A text without spaces is cut between characters when this many tokens are open.
_OPEN_AT_MOST = 64


@dataclass
class _Text:
    """One request's text in the draft's tokens."""

    settled: list[int]
    """Draft tokens that will not change any more."""
    taken: list[int] = field(default_factory=list)
    """The target's tokens so far."""
    tail: bytearray = field(default_factory=bytearray)
    """Bytes after the settled tokens, as the draft's tokens spell them."""
    tail_ids: list[int] = field(default_factory=list)
    at_start: bool = True
    lost: bool = False
    """True if the draft's tokenizer cannot spell the text."""


class Retokenizer:
    """Converts the target's tokens to the draft's, incrementally.

    Text whose tokens can no longer change is not tokenized again, so the cost of a round does not
    grow with the text. The result spells exactly the bytes of the target's tokens, and equals the
    draft tokenizer's own tokens for the whole text, unless the text has no space for a long way.
    Special tokens of the target become the draft's if they are written alike or end a text; others
    are spelled out.

    Args:
        ours, theirs: the target's vocabulary and the draft model's.
        draft_vocab_size: number of tokens that the draft model itself knows.
    """

    def __init__(
        self, ours: SpelledVocabulary, theirs: SpelledVocabulary, draft_vocab_size: int
    ) -> None:
        self._size, self._target, self._draft = draft_vocab_size, ours, theirs
        self._tokenizer = _continuing(theirs.description)
        self._special = _paired_specials(ours, theirs)
        self._texts: dict[int, _Text] = {}

    def ids(self, request_id: int, token_ids: list[int]) -> list[int] | None:
        """The draft's ids of a request's committed tokens, with the special tokens that open a text.

        Returns:
            None if the text is empty, ends inside a character (until the next token completes it),
                or holds text that the draft's tokenizer cannot spell (for good).
        """
        text = self._texts.get(request_id)
        if text is None or token_ids[: len(text.taken)] != text.taken:
            text = self._texts[request_id] = _Text(settled=list(self._draft.opening))
        new = token_ids[len(text.taken) :]
        # The draft's own opening tokens replace the target's beginning of text.
        first = int(not text.taken and new[:1] == [self._target.bos])
        for token in new[first:]:
            self._take(text, token)
        text.taken += new
        if not self._encode(text):
            return None
        self._settle(text)
        return [*text.settled, *text.tail_ids] or None

    def release(self, request_id: int) -> None:
        """Forget a request."""
        self._texts.pop(request_id, None)

    def _take(self, text: _Text, token: int) -> None:
        special, piece = self._special.get(token), self._target.bytes_of.get(token)
        if special is not None:
            # A character interrupted by a special token is never completed.
            text.lost = not self._encode(text)
            text.settled += [*text.tail_ids, special]
            text.tail, text.tail_ids = bytearray(), []
        elif piece is None:
            text.lost = True
        elif text.at_start and self._target.opens_with_space != self._draft.opens_with_space:
            text.tail += piece.removeprefix(b" ") if self._target.opens_with_space else b" " + piece
        else:
            text.tail += piece
        text.at_start = False

    def _encode(self, text: _Text) -> bool:
        """Update the tail's tokens; return False if that is impossible."""
        if text.lost:
            return False
        try:
            string, complete = codecs.utf_8_decode(text.tail, "strict", False)
        except UnicodeDecodeError:
            text.lost = True
            return False
        if complete < len(text.tail):
            return False
        text.tail_ids = self._tokenizer.encode(string, add_special_tokens=False).ids
        # Normalizers and unknown tokens change some texts.
        changed = self._spell(text.tail_ids) != text.tail
        text.lost = changed or max(text.tail_ids, default=0) >= self._size
        return not text.lost

    def _settle(self, text: _Text) -> None:
        """Move the tail's tokens that later text can no longer change to the settled ones."""
        cut = self._cut(text.tail_ids)
        if cut:
            del text.tail[: len(self._spell(text.tail_ids[:cut]))]
            text.settled += text.tail_ids[:cut]
            del text.tail_ids[:cut]

    def _cut(self, ids: list[int]) -> int:
        """Index at which to cut a tail; 0 for nowhere.

        The cut is before the space of a word, across which no tokenizer merges, or, after a long
        way without a space, between two characters.
        """
        if len(ids) <= 2 * _OPEN:
            return 0
        spelled = [self._draft.bytes_of[number] for number in ids]
        cuts = range(len(ids) - _OPEN, 0, -1)
        for cut in cuts:
            if spelled[cut].startswith(b" ") and not spelled[cut - 1][-1:].isspace():
                return cut
        if len(ids) <= _OPEN_AT_MOST:
            return 0
        return next((cut for cut in cuts if spelled[cut][0] & 0xC0 != 0x80), 0)

    def _spell(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._draft.bytes_of[number] for number in ids)


class Translation:
    """The means to draft with a model of another vocabulary.

    Args:
        tokenizer, draft_tokenizer: the target's and the draft model's.
        name: name of the draft model.
        target_vocab_size, draft_vocab_size: columns of their logits.

    Raises:
        IncompatibleDraftError: if too little is shared, or the tokenizers cannot be read.
    """

    def __init__(
        self,
        tokenizer: Any,
        draft_tokenizer: Any,
        name: str,
        target_vocab_size: int,
        draft_vocab_size: int,
    ) -> None:
        ours, theirs = SpelledVocabulary(tokenizer), SpelledVocabulary(draft_tokenizer)
        self.shared = SharedVocabulary(ours, theirs, target_vocab_size, draft_vocab_size)
        self.shared.check(name)
        self.retokenizer = Retokenizer(ours, theirs, draft_vocab_size)


def _paired_specials(ours: SpelledVocabulary, theirs: SpelledVocabulary) -> dict[int, int]:
    """The draft's special token for each of the target's that is written alike, and for the ends of text."""
    numbers = {content: number for number, content in theirs.special.items()}
    pairs = {
        number: numbers[content] for number, content in ours.special.items() if content in numbers
    }
    if ours.eos is not None and theirs.eos is not None:
        pairs[ours.eos] = theirs.eos
    return pairs


def _continuing(description: dict[str, Any]) -> Tokenizer:
    """A tokenizer that treats its input as the middle of a text.

    It adds nothing before or after it, and does not read special tokens from text that is written
    like them.
    """
    nothing = dict.fromkeys(("post_processor", "truncation", "padding"))
    steps = {key: _without_prefix(description[key]) for key in ("normalizer", "pre_tokenizer")}
    tokenizer = Tokenizer.from_str(json.dumps({**description, **nothing, **steps}))
    tokenizer.encode_special_tokens = True
    return tokenizer


def _without_prefix(step: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer that puts no space before a text."""
    if step is None or step["type"] == "Prepend":
        return None
    changes: dict[str, Any] = {
        key: list(filter(None, map(_without_prefix, step[key])))
        for key in ("normalizers", "pretokenizers")
        if key in step
    }
    never = {"prepend_scheme": "never", "add_prefix_space": False}
    return {**step, **changes, **{key: value for key, value in never.items() if key in step}}
