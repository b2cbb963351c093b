"""Language models for tests of the simulator: given rows, greedy choices, drafts that agree in part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from forerun.simulation.language_models import Context, LanguageModel
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
