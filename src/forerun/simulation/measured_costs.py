"""Costs of forwards, interpolated from measurements."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from forerun.core.costs import AXES, CostTable, Row
from forerun.errors import ConfigError
from forerun.theory.inputs import Floats, lengths, together


class MeasuredCosts:
    """Seconds of a forward, by linear interpolation between measurements.

    Args:
        measured: a table, or its rows (tokens, batch size, context, seconds), one for each combination,
            in any order.

    Raises:
        ConfigError: for an empty list of rows, numbers out of range, or a combination that is missing or
            given twice.
    """

    def __init__(self, measured: CostTable | Iterable[Row]) -> None:
        self.table = measured if isinstance(measured, CostTable) else CostTable.from_rows(measured)

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """Seconds of a forward; see `ForwardCosts.seconds`.

        Raises:
            ConfigError: for numbers outside the measured range.
        """
        table = self.table
        points = (table.num_tokens, table.batch_sizes, table.contexts)
        given = zip(AXES.items(), (num_tokens, batch_size, context), strict=True)
        wanted = together(*(lengths(name, value, shortest=least) for (name, least), value in given))
        for name, measured, values in zip(AXES, points, wanted, strict=True):
            outside = values[(values < measured[0]) | (values > measured[-1])]
            if outside.size:
                raise ConfigError(
                    f"{name} is {outside.flat[0]}; it was measured in [{measured[0]}, {measured[-1]}]."
                )
        return np.asarray(np.vectorize(table.seconds, otypes=[float])(*wanted))
