"""Language models for tests of the simulator: given rows, greedy choices, drafts that agree in part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from forerun.simulation.language_models import Context, LanguageModel
from forerun.theory.inputs import Floats, as_row, softmax


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


@dataclass(frozen=True)
class BlendedModel:
    """A draft that agrees with a target as far as wanted: a blend of its logits with noise.

    draft logits = agreement * target logits + (1 - agreement) * noise. Agreement is not acceptance.

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
