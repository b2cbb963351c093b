"""Which texts say the same: repeated prompts, and the questions of an evaluation in training data."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

# Words in a row that tell a text from all others (Brown et al., arXiv 2005.14165, appendix C).
LONGEST_RUN = 13
# A question of fewer words is kept out only where it is the whole prompt.
SHORTEST_RUN = 4
# Words in a row that near duplicates are compared by.
SHINGLE = 3
# Bands of hashes: two texts of a similarity of 0.7 share a band with a probability of 0.9998.
BANDS, BAND_ROWS = 32, 4
# Scripts without spaces: every character is a word.
_ALONE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+")

Signatures = NDArray[np.uint32]
"""Smallest hashes, [..., BANDS * BAND_ROWS]."""


def normalized(text: str) -> str:
    """A text without the differences that nobody reads: case, spaces, forms of characters."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words_of(text: str) -> list[str]:
    """The words of a text, normalized, without punctuation."""
    return _WORD.findall(normalized(text))


class KeptOut:
    """Questions that training must not see.

    A text is one of them where it is the same after `normalized`, or shares 13 words in a row with
    one; of a question of 4 to 12 words, all of them in a row.

    Args:
        questions: their texts, every turn by itself.
    """

    def __init__(self, questions: Iterable[str]) -> None:
        self._texts: set[str] = set()
        self._runs: dict[int, set[str]] = {}
        for question in questions:
            self._texts.add(normalized(question))
            words = words_of(question)
            length = min(len(words), LONGEST_RUN)
            if length >= SHORTEST_RUN:
                self._runs.setdefault(length, set()).update(_runs(words, length))

    def holds(self, text: str) -> bool:
        """Whether a text is, or contains, one of the questions."""
        if normalized(text) in self._texts:
            return True
        words = words_of(text)
        return any(
            not known.isdisjoint(_runs(words, length)) for length, known in self._runs.items()
        )


class Seen:
    """Prompts that have come before, and those that are nearly the same, by MinHash (Broder, 1997)
    over runs of 3 words, looked up by bands of hashes.

    Args:
        similarity: the share of their runs (Jaccard) at which two prompts are near duplicates.
    """

    def __init__(self, similarity: float) -> None:
        self.similarity = similarity
        self._texts: set[bytes] = set()
        # Of the prompts so far, the first `_size` rows.
        self._signatures: Signatures = np.zeros((1024, BANDS * BAND_ROWS), np.uint32)
        self._size = 0
        self._bands: dict[tuple[int, bytes], list[int]] = {}
        # The stream of RandomState never changes, so that a run that resumes decides alike.
        random = np.random.RandomState(0)
        size = BANDS * BAND_ROWS
        odd = random.randint(0, 2**63, size=(size, 1), dtype=np.uint64) * np.uint64(2)
        self._factors = odd + np.uint64(1)
        self._offsets = random.randint(0, 2**63, size=(size, 1), dtype=np.uint64)

    def take(self, text: str) -> str:
        """Remember a prompt unless it has come before: `duplicate`, `near_duplicate`, or nothing where
        it is new."""
        key = hashlib.blake2b(normalized(text).encode(), digest_size=16).digest()
        if key in self._texts:
            return "duplicate"
        signature = self._signature(text)
        bands = [(band, signature[band::BANDS].tobytes()) for band in range(BANDS)]
        near = {number for band in bands for number in self._bands.get(band, ())}
        same = (self._signatures[list(near)] == signature).mean(axis=1) if near else np.zeros(0)
        if (same >= self.similarity).any():
            return "near_duplicate"
        self._remember(signature, bands)
        self._texts.add(key)
        return ""

    def _remember(self, signature: Signatures, bands: list[tuple[int, bytes]]) -> None:
        if self._size == len(self._signatures):
            self._signatures = np.resize(self._signatures, (2 * self._size, BANDS * BAND_ROWS))
        self._signatures[self._size] = signature
        for band in bands:
            self._bands.setdefault(band, []).append(self._size)
        self._size += 1

    def _signature(self, text: str) -> Signatures:
        """The smallest hash of the text's runs under each function, uint32 [BANDS * BAND_ROWS]."""
        words = words_of(text) or [normalized(text)]
        runs = set(_runs(words, min(SHINGLE, len(words))))
        hashes = np.array([zlib.crc32(run.encode()) for run in runs], dtype=np.uint64)
        mixed = (hashes * self._factors + self._offsets) >> np.uint64(32)
        smallest: Signatures = mixed.min(axis=1).astype(np.uint32)
        return smallest


def _runs(words: list[str], length: int) -> Iterator[str]:
    """All runs of so many words."""
    return (" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
