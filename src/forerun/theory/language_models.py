"""Small language models for the simulator: functions from a context to a row of probability.

A context is a tuple of token ids, the oldest first; it may be empty. A row is [V] in float64 and
sums to one. Target and draft of a pair share one vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.checks import number, one_of, shown, text, whole
from forerun.errors import ConfigError, DistributionError
from forerun.theory.inputs import Floats, as_row, softmax

Context = tuple[int, ...]


class LanguageModel(Protocol):
    """Anything that gives the distribution of the next token."""

    def __call__(self, context: Context, /) -> Floats: ...


@dataclass(frozen=True)
class MockModel:
    """Random logits that depend on the sum of the last three tokens, one of them raised.

    With the defaults it is the target of the NumPy tutorial on speculative decoding
    (machinelearningplus.com), see `MOCK_TARGET` and `MOCK_DRAFT`.

    Args:
        vocab_size: V.
        seed: added to the sum of the tokens, it seeds NumPy's legacy generator.
        scale: the standard deviation of the logits.
        boost: what is added to the logit of token (sum mod V).
    """

    vocab_size: int = 10
    seed: int = 100
    scale: float = 1.0
    boost: float = 2.0

    def __post_init__(self) -> None:
        whole(1, 1 << 24)("vocab_size", self.vocab_size)
        whole(0, 1 << 31)("seed", self.seed)

    def __call__(self, context: Context, /) -> Floats:
        total = sum(context[-3:])
        logits = np.random.RandomState(total + self.seed).randn(self.vocab_size) * self.scale
        logits[total % self.vocab_size] += self.boost
        return softmax(logits)


MOCK_TARGET = MockModel()
MOCK_DRAFT = MockModel(seed=200, scale=0.8, boost=1.5)
MOCK_WORDS = ("the", "cat", "sat", "on", "mat", "dog", "ran", "big", "a", "red")
"""The tutorial's pair and the words that its tokens stand for."""


class TableModel:
    """Given rows: the one of the longest suffix of the context that has one, else the default.

    Args:
        default: the row of all other contexts, [V].
        rows: rows by context.

    Raises:
        DistributionError: for rows that are no probabilities or of different vocabularies.
    """

    def __init__(self, default: ArrayLike, rows: Mapping[Context, ArrayLike] | None = None) -> None:
        self._rows: dict[Context, Floats] = {(): as_row("the default row", default)}
        for context, row in (rows or {}).items():
            self._rows[tuple(context)] = as_row(f"the row of {context}", row)
        if len({len(row) for row in self._rows.values()}) > 1:
            raise DistributionError("the rows differ in length; give all over one vocabulary.")
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


@dataclass(frozen=True)
class BlendedModel:
    """A draft that agrees with a target as far as wanted: a blend of its logits with noise.

    draft logits = agreement * target logits + (1 - agreement) * noise, as in the tutorial's measure.
    Agreement is no acceptance: see `agreement.acceptance_of_agreement`.

    Args:
        target: the model to agree with.
        agreement: 0 is noise alone, 1 the target itself.
        seed: of the noise, which depends on it and on the last `window` tokens.
        noise: the standard deviation of the noise.
    """

    target: LanguageModel
    agreement: float
    seed: int = 0
    noise: float = 0.5
    window: int = 3

    def __post_init__(self) -> None:
        number(0.0, 1.0)("agreement", self.agreement)
        number(0.0, 1e6)("noise", self.noise)
        whole(0, 1 << 31)("seed", self.seed)
        whole(0, 1 << 20)("window", self.window)

    def __call__(self, context: Context, /) -> Floats:
        row = as_row("the target row", self.target(context))
        if self.agreement == 1.0:
            return row
        recent = context[-self.window :] if self.window else ()
        generator = np.random.default_rng([self.seed, *recent])
        logits = (1.0 - self.agreement) * self.noise * generator.standard_normal(len(row))
        if self.agreement > 0.0:  # 0 times the -inf of an impossible token would be NaN
            with np.errstate(divide="ignore"):
                logits = logits + self.agreement * np.log(row)
        return softmax(logits)


@dataclass(frozen=True, eq=False)
class NgramModel:
    """An n-gram model of a text, interpolated down to single tokens and to the uniform row.

    P(w | h) = (count(h w) + kinds(h) P(w | shorter h)) / (count(h) + kinds(h)), kinds(h) being the
    number of different tokens seen after h: Witten-Bell smoothing (Witten and Bell, 1991; Chen and
    Goodman, 1998). No token is impossible. Made by `fit`.

    Args:
        order: 1 looks at no context, 2 at one token, and so on.
        vocabulary: the tokens in the order of their ids.
        unit: "character" or "word".
    """

    order: int
    vocabulary: tuple[str, ...]
    unit: str
    _seen: dict[Context, tuple[NDArray[np.int64], Floats]] = field(repr=False)
    _ids: dict[str, int] = field(repr=False)

    @classmethod
    def fit(
        cls,
        corpus: str,
        order: int,
        *,
        unit: str = "character",
        vocabulary: Iterable[str] | None = None,
    ) -> NgramModel:
        """Count the n-grams of a text.

        Args:
            corpus: the text; words are what white space separates.
            order: at least 1.
            vocabulary: the tokens, where a pair is fitted to different texts; those of the text,
                sorted, otherwise.

        Raises:
            ConfigError: for a text of fewer tokens than the order, or with tokens that the
                vocabulary lacks.
        """
        order = whole(1, 1 << 10)("order", order)
        tokens = _tokens(corpus, unit)
        if len(tokens) < order:
            raise ConfigError(
                f"the text has {len(tokens)} {unit}s, too few for order {order}; "
                "give a longer text or a smaller order."
            )
        words = tuple(sorted(set(tokens)) if vocabulary is None else dict.fromkeys(vocabulary))
        ids = {token: index for index, token in enumerate(words)}
        return cls(order, words, unit, _count(_encode(tokens, ids), order), ids)

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def encode(self, written: str) -> Context:
        """Token ids of a text.

        Raises:
            ConfigError: for a token that the vocabulary lacks.
        """
        return _encode(_tokens(written, self.unit), self._ids)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of token ids."""
        return ("" if self.unit == "character" else " ").join(
            self.vocabulary[token_id] for token_id in token_ids
        )

    def __call__(self, context: Context, /) -> Floats:
        row = np.full(self.vocab_size, 1.0 / self.vocab_size)
        for size in range(min(self.order - 1, len(context)) + 1):
            seen = self._seen.get(context[len(context) - size :])
            if seen is None:
                break  # nor was any longer one
            token_ids, counts = seen
            row *= len(token_ids) / (counts.sum() + len(token_ids))
            row[token_ids] += counts / (counts.sum() + len(token_ids))
        return row


def prefix_tables(model: LanguageModel, context: Context, length: int) -> list[Floats]:
    """The rows of a model after everything that can be drafted: table i is [V] * (i + 1).

    What `chains` takes for rows that depend on the drafted prefix.

    Raises:
        ConfigError: for a length that gives more than 2^20 prefixes.
    """
    length = whole(0, 1 << 10)("length", length)
    vocab_size = len(as_row("a row of the model", model(context)))
    if vocab_size ** max(length - 1, 0) > 1 << 20:
        raise ConfigError(
            f"{length} tokens of {vocab_size} have more than 2^20 prefixes; shorten the draft."
        )
    tables = []
    for size in range(length):
        shape = (vocab_size,) * size
        rows = [
            as_row("a row of the model", model(context + prefix)) for prefix in np.ndindex(shape)
        ]
        tables.append(np.reshape(rows, (*shape, vocab_size)))
    return tables


def _tokens(written: str, unit: str) -> list[str]:
    unit = one_of(["character", "word"])("unit", unit)
    found = text("text", written)
    return list(found) if unit == "character" else found.split()


def _encode(tokens: list[str], ids: Mapping[str, int]) -> Context:
    unknown = next((token for token in tokens if token not in ids), None)
    if unknown is not None:
        raise ConfigError(f"{shown(unknown)} is not in the vocabulary; fit it with the text.")
    return tuple(ids[token] for token in tokens)


def _count(token_ids: Context, order: int) -> dict[Context, tuple[NDArray[np.int64], Floats]]:
    """After each context of up to order - 1 tokens: the tokens seen and how often."""
    after: dict[Context, list[tuple[int, int]]] = {}
    for size in range(order):
        grams = Counter(zip(*(token_ids[start:] for start in range(size + 1)), strict=False))
        for gram, count in grams.items():
            after.setdefault(gram[:-1], []).append((gram[-1], count))
    return {
        context: (np.array([i for i, _ in seen]), np.array([float(n) for _, n in seen]))
        for context, seen in after.items()
    }
