"""Two vocabularies: what their tokens stand for, and which they share.

A draft model of another vocabulary proposes shared tokens alone: token-level intersection (Timor et
al., arXiv 2502.05202). Its rows of logits are restricted to them before anything is drawn, so what
verification is told is what was drawn from, and the target's whole distribution comes out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forerun.errors import IncompatibleDraftError

# Of the smaller vocabulary: with less in common the two were made for different languages.
LEAST_OF_SMALLER = 1 / 4
# Of the larger: a vocabulary of single bytes is contained in most, and proposes no word of theirs.
LEAST_OF_LARGER = 1 / 20

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPELLED = {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}


class Vocabulary:
    """What the tokens of a tokenizer stand for.

    Args:
        tokenizer: a fast one of transformers: byte-level, in the manner of SentencePiece, or of
            plain words.

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
        """Whether the first token of a text brings a space that is not in the text."""
        self.opening = _opening(tokenizer)
        spare = {number for token, number in names.items() if _BYTE_TOKEN.fullmatch(token)}
        self.ordinary: dict[bytes, int] = {}
        """The token of each string of bytes. Where there are several: the lowest that is no
        fallback for a byte, as a fallback stands for what has no token of its own."""
        for number in sorted(self.bytes_of, key=lambda number: (number in spare, number)):
            if number not in self.special and self.bytes_of[number]:
                self.ordinary.setdefault(self.bytes_of[number], number)

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """Of a tokenizer; a vocabulary, which takes time to read, is handed through."""
        return tokenizer if isinstance(tokenizer, cls) else cls(tokenizer)


def shared_tokens(tokenizer: Any, draft_tokenizer: Any) -> list[tuple[int, int]]:
    """Pairs (target id, draft id) of tokens that stand for the same bytes, by rising target id.

    Special tokens are never shared, but for the ends of text: proposing where a text ends saves the
    target's last forward, and both models mean the same by it.

    Args:
        tokenizer: the target's, or its `Vocabulary`.
        draft_tokenizer: the draft model's, or its `Vocabulary`.

    Raises:
        IncompatibleDraftError: for tokenizers whose tokens cannot be read.
    """
    ours, theirs = Vocabulary.of(tokenizer), Vocabulary.of(draft_tokenizer)
    both = ours.ordinary.keys() & theirs.ordinary.keys()
    pairs = [(ours.ordinary[one], theirs.ordinary[one]) for one in both]
    if ours.eos is not None and theirs.eos is not None:
        pairs.append((ours.eos, theirs.eos))
    return sorted(pairs)


class SharedVocabulary:
    """The tokens that two models share.

    Args:
        tokenizer: the target's, or its `Vocabulary`.
        draft_tokenizer: the draft model's, or its `Vocabulary`.
        target_vocab_size: columns of the target's logits.
        draft_vocab_size: columns of the draft model's; tokens that either lacks are not shared.

    Raises:
        IncompatibleDraftError: for tokenizers whose tokens cannot be read.
    """

    def __init__(
        self, tokenizer: Any, draft_tokenizer: Any, target_vocab_size: int, draft_vocab_size: int
    ) -> None:
        ours, theirs = Vocabulary.of(tokenizer), Vocabulary.of(draft_tokenizer)
        self.target_vocab_size = target_vocab_size
        self.sizes = (len(ours.ordinary), len(theirs.ordinary))
        """Ordinary tokens of the target's vocabulary and of the draft's."""
        self._draft_ids = {
            one: other
            for one, other in shared_tokens(ours, theirs)
            if one < target_vocab_size and other < draft_vocab_size
        }
        self.num_ordinary = len(self._draft_ids.keys() - ours.special.keys())
        self.target_ids = torch.tensor(list(self._draft_ids), dtype=torch.long)
        self.draft_ids = torch.tensor(list(self._draft_ids.values()), dtype=torch.long)

    def to_target(self, logits: Tensor) -> Tensor:
        """The draft's logits [N, draft V] as logits [N, target V] of the same dtype: those of shared
        tokens in the target's places, -inf elsewhere."""
        if self.target_ids.device != logits.device:
            self.target_ids = self.target_ids.to(logits.device)
            self.draft_ids = self.draft_ids.to(logits.device)
        rows = logits.new_full((len(logits), self.target_vocab_size), -torch.inf)
        rows[:, self.target_ids] = logits[:, self.draft_ids]
        return rows

    def draft_id_of(self, target_id: int) -> int:
        """The draft's id of a token that was drawn from `to_target`'s rows."""
        return self._draft_ids[target_id]


def check_overlap(shared: SharedVocabulary, name: str) -> None:
    """Refuse a draft that can propose too few of the target's tokens to be of use.

    Raises:
        IncompatibleDraftError: with the numbers.
    """
    smaller, larger = sorted(shared.sizes)
    count = shared.num_ordinary
    if count and count >= LEAST_OF_SMALLER * smaller and count >= LEAST_OF_LARGER * larger:
        return
    raise IncompatibleDraftError(
        f"the draft model {name} has another vocabulary: {count} of its {shared.sizes[1]} tokens are "
        f"among the target's {shared.sizes[0]}, and {LEAST_OF_SMALLER:.0%} of the smaller vocabulary "
        f"and {LEAST_OF_LARGER:.0%} of the larger are needed for its drafts to help; choose a draft "
        "whose tokenizer is closer to the target's, or method 'ngram'."
    )


def _steps(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """A step of a tokenizer, or those of a sequence of them."""
    if step is None:
        return []
    return [one for part in step[name] for one in _steps(part, name)] if name in step else [step]


def _reader(decoders: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """How to get from the name of a token to its bytes, by what the tokenizer decodes with."""
    kinds = {step["type"] for step in decoders}
    if not decoders:
        # Without a decoder tokens are joined by spaces.
        return lambda token: f" {token}".encode()
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()
        return lambda token: _from_alphabet(token, alphabet)
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


def _byte_alphabet() -> dict[str, int]:
    """The characters that GPT-2's byte-level alphabet writes for bytes: printable ones for themselves,
    others for the rest in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(rest)
    }


def _from_alphabet(token: str, alphabet: dict[str, int]) -> bytes:
    try:
        return bytes(map(alphabet.__getitem__, token))
    except KeyError:
        # Added tokens are not written in the alphabet; its decoder takes them as they are, too.
        return token.encode()


def _special(tokenizer: Any, description: dict[str, Any]) -> dict[int, str]:
    """Special tokens by id; added tokens that are not special are ordinary text."""
    added = {one["id"]: one["content"] for one in description["added_tokens"] if one["special"]}
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    return added | dict(named)


def _opening(tokenizer: Any) -> list[int]:
    """The token for the beginning of a text, if the tokenizer puts it there."""
    first: list[int] = tokenizer.encode("", add_special_tokens=True)[:1]
    return first if first == [tokenizer.bos_token_id] else []
