"""Drafting with a model of another vocabulary: shared tokens, and the text in the draft's tokens.

A draft model of another vocabulary proposes only shared tokens: token-level intersection (Timor et
al., arXiv 2502.05202). Its rows of logits are restricted to them before anything is drawn, so
verification reads the rows that tokens were drawn from, and the output has the target's whole
distribution.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from forerun.errors import IncompatibleDraftError
from forerun.models.tokenizer import byte_letters

# Least shared part of the smaller vocabulary: with less, the two were made for different languages.
LEAST_OF_SMALLER = 1 / 4
# Least shared part of the larger one: a vocabulary of single bytes is contained in most others, but has none
# of their words.
LEAST_OF_LARGER = 1 / 20
# Number of draft tokens at the end of a text that may still change as it grows. Few words are longer.
_OPEN = 16
# A text without spaces is cut between characters when this many tokens are open.
_OPEN_AT_MOST = 64

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPELLED = {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}


class SpelledVocabulary:
    """The bytes of each token of a tokenizer.

    Args:
        tokenizer: a fast tokenizer of transformers: byte-level, in the manner of SentencePiece, or
            of plain words.

    Raises:
        IncompatibleDraftError: for any other.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise IncompatibleDraftError(
                f"what the tokens of a {type(tokenizer).__name__} stand for cannot be read; choose a "
                "draft of the target's family or one with a tokenizer.json, or method 'ngram'."
            )
        self.description: dict[str, Any] = json.loads(backend.to_str())
        decoders = _steps(self.description["decoder"], "decoders")
        read, names = _reader(decoders), tokenizer.get_vocab()
        self.bytes_of: dict[int, bytes] = {number: read(token) for token, number in names.items()}
        self.special: dict[int, str] = _special(tokenizer, self.description)
        self.eos: int | None = tokenizer.eos_token_id
        self.bos: int | None = tokenizer.bos_token_id
        self.opens_with_space = any(map(_drops_first_space, decoders)) or not decoders
        """True if the first token of a text adds a space that is not in the text."""
        self.opening = _opening(tokenizer)
        spare = {number for token, number in names.items() if _BYTE_TOKEN.fullmatch(token)}
        self.ordinary: dict[bytes, int] = {}
        """The token of each string of bytes.

        If there are several, it is the lowest that is not a fallback for a byte, because a fallback
        stands for text without a token of its own.
        """
        for number in sorted(self.bytes_of, key=lambda number: (number in spare, number)):
            if number not in self.special and self.bytes_of[number]:
                self.ordinary.setdefault(self.bytes_of[number], number)


class SharedVocabulary:
    """The tokens of two models that stand for the same bytes.

    Special tokens are never shared, except for the ends of text: proposing the end of a text saves
    the target's last forward, and both models mean the same by it.

    Args:
        ours, theirs: the target's vocabulary and the draft model's.
        target_vocab_size: columns of the target's logits.
        draft_vocab_size: columns of the draft model's; tokens that either lacks are not shared.
    """

    def __init__(
        self,
        ours: SpelledVocabulary,
        theirs: SpelledVocabulary,
        target_vocab_size: int,
        draft_vocab_size: int,
    ) -> None:
        self.target_vocab_size = target_vocab_size
        self.sizes = (len(ours.ordinary), len(theirs.ordinary))
        """Number of ordinary tokens of the target's vocabulary and of the draft's."""
        both = ours.ordinary.keys() & theirs.ordinary.keys()
        pairs = [(ours.ordinary[spelled], theirs.ordinary[spelled]) for spelled in both]
        if ours.eos is not None and theirs.eos is not None:
            pairs.append((ours.eos, theirs.eos))
        self.draft_id_of = {
            target_id: draft_id
            for target_id, draft_id in sorted(pairs)
            if target_id < target_vocab_size and draft_id < draft_vocab_size
        }
        """The draft's id of each shared token, by the target's."""
        self.num_ordinary = len(self.draft_id_of.keys() - ours.special.keys())
        self.target_ids = torch.tensor(list(self.draft_id_of), dtype=torch.long)
        self.draft_ids = torch.tensor(list(self.draft_id_of.values()), dtype=torch.long)

    def check(self, name: str) -> None:
        """Refuse a draft that can propose too few of the target's tokens to be of use.

        Raises:
            IncompatibleDraftError: with the numbers.
        """
        smaller, larger = sorted(self.sizes)
        count = self.num_ordinary
        if not count or count < LEAST_OF_SMALLER * smaller or count < LEAST_OF_LARGER * larger:
            raise IncompatibleDraftError(
                f"the draft model {name} has another vocabulary: {count} of its {self.sizes[1]} tokens "
                f"are among the target's {self.sizes[0]} (needed: {LEAST_OF_SMALLER:.0%} of the smaller "
                f"vocabulary and {LEAST_OF_LARGER:.0%} of the larger); choose a draft whose tokenizer is "
                "closer to the target's, or method 'ngram'."
            )

    def to_target(self, logits: Tensor) -> Tensor:
        """The draft's logits [N, draft V] as logits [N, target V] of the same dtype.

        Shared tokens have theirs in the target's columns; all others have -inf.
        """
        if self.target_ids.device != logits.device:
            self.target_ids = self.target_ids.to(logits.device)
            self.draft_ids = self.draft_ids.to(logits.device)
        rows = logits.new_full((len(logits), self.target_vocab_size), -torch.inf)
        rows[:, self.target_ids] = logits[:, self.draft_ids]
        return rows


def _steps(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """A step of a tokenizer as a list, or the steps of a sequence."""
    if step is None:
        return []
    return (
        [inner for part in step[name] for inner in _steps(part, name)] if name in step else [step]
    )


def _reader(decoders: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """Returns a function from the name of a token to its bytes, by the decoders of the tokenizer."""
    kinds = {step["type"] for step in decoders}
    if not decoders:
        # Without a decoder tokens are joined by spaces.
        return lambda token: f" {token}".encode()
    if "ByteLevel" in kinds:
        alphabet = {letter: byte for byte, letter in enumerate(byte_letters())}

        def from_alphabet(token: str) -> bytes:
            # Added tokens are not written in the alphabet; like its decoder, take them unchanged.
            written = alphabet.keys() >= set(token)
            return bytes(alphabet[letter] for letter in token) if written else token.encode()

        return from_alphabet
    marks = [_mark(step) for step in decoders]
    if not kinds <= _SPELLED or not any(marks):
        raise IncompatibleDraftError(
            f"what tokens decoded by {', '.join(sorted(kinds))} stand for cannot be read; choose a "
            "draft of the target's family, or method 'ngram'."
        )
    mark, falls_back = next(filter(None, marks)), "ByteFallback" in kinds

    def spelled(token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token) if falls_back else None
        return bytes([int(byte[1], 16)]) if byte else token.replace(mark, " ").encode()

    return spelled


def _mark(step: dict[str, Any]) -> str | None:
    """The character that stands for a space."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["content"] == " ":
        mark: str | None = step["pattern"].get("String")
        return mark
    return None


def _drops_first_space(step: dict[str, Any]) -> bool:
    drops = {"Metaspace": "prepend_scheme", "Strip": "start"}.get(step["type"])
    return drops is not None and step[drops] not in ("never", 0)


def _special(tokenizer: Any, description: dict[str, Any]) -> dict[int, str]:
    """Special tokens by id; added tokens that are not special are ordinary text."""
    added = {
        token["id"]: token["content"] for token in description["added_tokens"] if token["special"]
    }
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    return added | dict(named)


def _opening(tokenizer: Any) -> list[int]:
    """The token for the beginning of a text, if the tokenizer adds it."""
    first: list[int] = tokenizer.encode("", add_special_tokens=True)[:1]
    return first if first == [tokenizer.bos_token_id] else []


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
