"""Vocabularies of two models: the bytes of their tokens, and the tokens that they share.

A draft model of another vocabulary proposes only shared tokens: token-level intersection (Timor et
al., arXiv 2502.05202). Its rows of logits are restricted to them before anything is drawn, so
verification reads the rows that tokens were drawn from, and the output has the target's whole
distribution.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forerun.errors import IncompatibleDraftError
from forerun.models.tokenizer import byte_letters

# Least shared part of the smaller vocabulary: with less, the two were made for different languages.
LEAST_OF_SMALLER = 1 / 4
# Least shared part of the larger one: a vocabulary of single bytes is contained in most others, but has none
# of their words.
LEAST_OF_LARGER = 1 / 20

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
