"""Small language models for the simulator: functions from a context to a row of probability.

A context is a tuple of token ids, the oldest first, and may be empty. A row is [V] in float64 and sums to
one. Target and draft share one vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.errors import ConfigError, shown
from forerun.options import Text, check
from forerun.theory.inputs import Floats, softmax

Context = tuple[int, ...]


class LanguageModel(Protocol):
    """A function that returns the distribution of the next token."""

    def __call__(self, context: Context, /) -> Floats: ...


@dataclass(frozen=True)
class MockModel:
    """A model with random logits that depend on the sum of the last three tokens; one logit is raised.

    With the defaults, it is the target of the NumPy tutorial on speculative decoding
    (machinelearningplus.com); see `MOCK_TARGET` and `MOCK_DRAFT`.

    Args:
        vocab_size: number of tokens, V.
        seed: number added to the sum of the tokens to seed NumPy's legacy generator.
        scale: standard deviation of the logits.
        boost: number added to the logit of token (sum mod V).
    """

    vocab_size: int = 10
    seed: int = 100
    scale: float = 1.0
    boost: float = 2.0

    def __post_init__(self) -> None:
        check("vocab_size", self.vocab_size, int, ge=1, le=1 << 24)
        check("seed", self.seed, int, ge=0, le=1 << 31)

    def __call__(self, context: Context, /) -> Floats:
        total = sum(context[-3:])
        logits = np.random.RandomState(total + self.seed).randn(self.vocab_size) * self.scale
        logits[total % self.vocab_size] += self.boost
        return softmax(logits)


MOCK_TARGET = MockModel()
MOCK_DRAFT = MockModel(seed=200, scale=0.8, boost=1.5)
MOCK_WORDS = ("the", "cat", "sat", "on", "mat", "dog", "ran", "big", "a", "red")
"""Words of the tutorial's tokens."""


@dataclass(frozen=True, eq=False)
class NgramModel:
    """An n-gram model of a text, interpolated down to single tokens and to the uniform row.

    P(w | h) = (count(h w) + kinds(h) P(w | shorter h)) / (count(h) + kinds(h)), where kinds(h) is the
    number of different tokens seen after h. This is Witten-Bell smoothing (Witten and Bell, 1991; Chen and
    Goodman, 1998). No token is impossible. Use `fit` to make a model.

    Args:
        order: n of the n-grams: 1 uses no context, 2 one token, and so on.
        vocabulary: tokens in the order of their ids.
    """

    order: int
    vocabulary: tuple[str, ...]
    _seen: dict[Context, tuple[NDArray[np.int64], Floats]] = field(repr=False)

    @classmethod
    def fit(
        cls,
        corpus: str,
        order: int,
        *,
        unit: str = "character",
        vocabulary: Iterable[str] | None = None,
    ) -> NgramModel:
        """Fit a model by counting the n-grams of a text.

        Args:
            corpus: text; words are separated by white space.
            order: n of the n-grams, at least 1.
            unit: "character" or "word".
            vocabulary: tokens, for models fitted to different texts. Default: the sorted tokens of the
                text.

        Raises:
            ConfigError: for a text with fewer tokens than the order, or with tokens outside the
                vocabulary.
        """
        order = check("order", order, int, ge=1, le=1 << 10)
        check("unit", unit, Literal["character", "word"])
        text = check("text", corpus, Text)
        tokens = list(text) if unit == "character" else text.split()
        if len(tokens) < order:
            raise ConfigError(
                f"the text has {len(tokens)} {unit}s, too few for order {order}; "
                "give a longer text or a smaller order."
            )
        words = tuple(sorted(set(tokens)) if vocabulary is None else dict.fromkeys(vocabulary))
        ids = {token: index for index, token in enumerate(words)}
        unknown = next((token for token in tokens if token not in ids), None)
        if unknown is not None:
            raise ConfigError(f"{shown(unknown)} is not in the vocabulary; fit it with the text.")
        return cls(order, words, _count(tuple(ids[token] for token in tokens), order))

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def __call__(self, context: Context, /) -> Floats:
        row = np.full(self.vocab_size, 1.0 / self.vocab_size)
        for size in range(min(self.order - 1, len(context)) + 1):
            seen = self._seen.get(context[len(context) - size :])
            if seen is None:
                break  # Longer contexts were not seen either.
            token_ids, counts = seen
            row *= len(token_ids) / (counts.sum() + len(token_ids))
            row[token_ids] += counts / (counts.sum() + len(token_ids))
        return row


def _count(token_ids: Context, order: int) -> dict[Context, tuple[NDArray[np.int64], Floats]]:
    """Count the tokens after each context of up to order - 1 tokens: token ids and counts."""
    after: dict[Context, list[tuple[int, int]]] = {}
    for size in range(order):
        grams = Counter(zip(*(token_ids[start:] for start in range(size + 1)), strict=False))
        for gram, count in grams.items():
            after.setdefault(gram[:-1], []).append((gram[-1], count))
    return {
        context: (np.array([i for i, _ in seen]), np.array([float(n) for _, n in seen]))
        for context, seen in after.items()
    }
