"""Tables of costs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.costs.table import CostTable
from forerun.errors import ConfigError

AXES = ((1, 2, 9), (1, 64), (0, 1024, 4096))


def plane(tokens: float, batch: float, context: float) -> float:
    return 1.0 + 0.1 * tokens + 0.01 * batch + 1e-4 * context + 1e-6 * tokens * batch * context


def table() -> CostTable:
    points = list(itertools.product(*AXES))
    return CostTable.from_rows([(*point, plane(*point)) for point in reversed(points)])


@given(st.floats(1, 50), st.floats(1, 200), st.floats(0, 9000))
def test_costs_are_linear_between_the_points_and_beyond_them(
    tokens: float, batch: float, context: float
) -> None:
    assert table().seconds(tokens, batch, context) == pytest.approx(plane(tokens, batch, context))


def test_arrays_broadcast() -> None:
    tokens, batches = np.array([[1.0], [3.5], [20.0]]), np.array([1, 7])
    found = table().seconds(tokens, batches, 100)
    assert found == pytest.approx(np.vectorize(plane)(tokens, batches, 100))
    assert table().seconds(np.int64(3), 1, 0) == table().seconds(3)


def test_rows_make_the_same_table() -> None:
    assert CostTable.from_rows(table().rows) == table()


def test_costs_never_fall_beyond_the_points() -> None:
    falling = CostTable.from_rows([(1, 1, 0, 3.0), (2, 1, 0, 2.0), (4, 1, 0, 1.0)])
    assert falling.seconds(3) == pytest.approx(1.5)
    assert falling.seconds(400) == 1.0
    assert falling.seconds(0) == 3.0


BAD: list[tuple[list[Any], str]] = [
    ([], "no measurements"),
    ([(1, 1, 0, 0.0)], "above zero"),
    ([(1, 1, 0, float("nan"))], "above zero"),
    ([(1, 1, 0, True)], "seconds is True"),
    ([(0, 1, 0, 1.0)], "measured num_tokens is 0"),
    ([(1, 1.0, 0, 1.0)], "measured batch_size is 1.0"),
    ([(1, 1, 0, 1.0)] * 2, "(1, 1, 0) is given twice"),
    ([(1, 1, 0, 1.0), (2, 2, 0, 1.0)], "(2, 1, 0) is missing"),
]


@pytest.mark.parametrize(("rows", "message"), BAD)
def test_what_is_no_table_is_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        CostTable.from_rows(rows)
    assert message in str(error.value)
