"""Language models for tests of the simulator: given rows, greedy choices, n-grams of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.simulation.simulator import Context, LanguageModel
from forerun.theory.inputs import Floats, as_row


class TableModel:
    """Given rows: the one of the longest suffix of the context that has one, else the default.

    Args:
        default: the row of all other contexts, [V].
        rows: rows by context.
    """

    def __init__(self, default: ArrayLike, rows: Mapping[Context, ArrayLike] | None = None) -> None:
        self._rows: dict[Context, Floats] = {(): as_row("the default row", default)}
        for context, row in (rows or {}).items():
            self._rows[tuple(context)] = as_row(f"the row of {context}", row)
        self._longest = max(map(len, self._rows))

    def __call__(self, context: Context, /) -> Floats:
        for size in range(min(self._longest, len(context)), 0, -1):
            if context[-size:] in self._rows:
                return self._rows[context[-size:]]
        return self._rows[()]


@dataclass(frozen=True)
class GreedyModel:
    """All probability on the likeliest token of another model, the lowest id on ties."""

    model: LanguageModel

    def __call__(self, context: Context, /) -> Floats:
        row = self.model(context)
        point = np.zeros(len(row))
        point[int(np.argmax(row))] = 1.0
        return point


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
        """
        tokens = list(corpus) if unit == "character" else corpus.split()
        words = tuple(sorted(set(tokens)) if vocabulary is None else dict.fromkeys(vocabulary))
        ids = {token: index for index, token in enumerate(words)}
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


def prefix_tables(model: LanguageModel, context: Context, length: int) -> list[Floats]:
    """The rows of a model after everything that can be drafted: table i is [V] * (i + 1).

    What `chains` takes for rows that depend on the drafted prefix.
    """
    vocab_size = len(model(context))
    tables = []
    for size in range(length):
        shape = (vocab_size,) * size
        rows = [
            as_row("a row of the model", model(context + prefix)) for prefix in np.ndindex(shape)
        ]
        tables.append(np.reshape(rows, (*shape, vocab_size)))
    return tables
