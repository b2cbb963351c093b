"""Texts that training data must not repeat: earlier prompts, and questions of an evaluation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

# Words in a row that identify a text (Brown et al., arXiv 2005.14165, appendix C).
LONGEST_RUN = 13
# A question of fewer words is kept out only if it is the whole prompt.
SHORTEST_RUN = 4
# Scripts without spaces: every character is a word.
_ALONE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+")


def normalized(text: str) -> str:
    """A text without differences of case, spaces and Unicode forms."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words_of(text: str) -> list[str]:
    """The words of a text, normalized, without punctuation."""
    return _WORD.findall(normalized(text))


def key_of(text: str) -> str:
    """Words of a text in one string, equal for prompts that repeat each other."""
    return " ".join(words_of(text)) or normalized(text)


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


def _runs(words: list[str], length: int) -> Iterator[str]:
    """All runs of `length` words."""
    return (" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
