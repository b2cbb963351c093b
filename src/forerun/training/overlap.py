"""Detects repeated prompts, and questions of an evaluation in training data."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

# Words in a row that identify a text (Brown et al., arXiv 2005.14165, appendix C).
LONGEST_RUN = 13
# A question of fewer words is kept out only if it is the whole prompt.
SHORTEST_RUN = 4
# Words in a run (shingle) by which near duplicates are compared.
SHINGLE = 3
# Bands of hashes: two texts of a similarity of 0.7 share a band with a probability of 0.9998.
BANDS, BAND_ROWS = 32, 4
# Scripts without spaces: every character is a word.
_ALONE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+")

Signatures = NDArray[np.uint32]
"""MinHash signatures: smallest hashes, [..., BANDS * BAND_ROWS]."""


def normalized(text: str) -> str:
    """A text without differences of case, spaces and Unicode forms."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words_of(text: str) -> list[str]:
    """The words of a text, normalized, without punctuation."""
    return _WORD.findall(normalized(text))


class KeptOut:
    """Questions that training must not see.

    A text matches a question if the two are equal after `normalized`, or share 13 words in a row. A
    question of 4 to 12 words matches if all its words occur in a row.

    Args:
        questions: texts of the questions, every turn by itself.
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
        """True if a text is, or contains, one of the questions."""
        if normalized(text) in self._texts:
            return True
        words = words_of(text)
        return any(
            not known.isdisjoint(_runs(words, length)) for length, known in self._runs.items()
        )


class SeenPrompts:
    """Prompts seen before, which recognizes repeated and nearly equal ones.

    Near duplicates are found by MinHash (Broder, 1997) over runs of 3 words, looked up by bands of
    hashes.

    Args:
        similarity: Jaccard similarity of their runs from which two prompts are near duplicates.
    """

    def __init__(self, similarity: float) -> None:
        self.similarity = similarity
        self._texts: set[bytes] = set()
        # The first `_size` rows are the signatures of the prompts so far.
        self._signatures: Signatures = np.zeros((1024, BANDS * BAND_ROWS), np.uint32)
        self._size = 0
        self._bands: dict[tuple[int, bytes], list[int]] = {}
        # The stream of RandomState never changes between versions, so a resumed run decides alike.
        random = np.random.RandomState(0)
        size = BANDS * BAND_ROWS
        odd = random.randint(0, 2**63, size=(size, 1), dtype=np.uint64) * np.uint64(2)
        self._factors = odd + np.uint64(1)
        self._offsets = random.randint(0, 2**63, size=(size, 1), dtype=np.uint64)

    def take(self, text: str) -> str:
        """Remember a prompt if it is new.

        Returns:
            `duplicate`, `near_duplicate`, or an empty string for a new prompt.
        """
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
        """Smallest hash of the text's runs under each hash function, uint32 [BANDS * BAND_ROWS]."""
        words = words_of(text) or [normalized(text)]
        runs = set(_runs(words, min(SHINGLE, len(words))))
        hashes = np.array([zlib.crc32(run.encode()) for run in runs], dtype=np.uint64)
        mixed = (hashes * self._factors + self._offsets) >> np.uint64(32)
        smallest: Signatures = mixed.min(axis=1).astype(np.uint32)
        return smallest


def _runs(words: list[str], length: int) -> Iterator[str]:
    """All runs of `length` words."""
    return (" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
