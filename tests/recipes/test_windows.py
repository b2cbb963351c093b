"""Windows visit everything once an epoch, and a run resumes where it stopped."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from forerun.errors import TrainingError
from recipes.windows import Windows


def test_an_epoch_visits_every_window_once_and_resumes_anywhere() -> None:
    windows = Windows(np.arange(1000, dtype=np.uint16), seed=3)
    per_epoch = (1000 - 1) // 10 - 1
    rows = windows.batch(0, 10, per_epoch)
    assert rows.shape == (per_epoch, 11)
    assert set(Counter(rows[:, 0].tolist()).values()) == {1}
    assert (np.diff(rows, axis=1) == 1).all()
    resumed = Windows(np.arange(1000, dtype=np.uint16), seed=3)
    np.testing.assert_array_equal(resumed.batch(70, 10, 5), rows[7:12])
    second = windows.batch(per_epoch * 10, 10, per_epoch)
    assert not np.array_equal(rows, second)
    with pytest.raises(TrainingError, match="too few"):
        windows.batch(0, 600, 1)
