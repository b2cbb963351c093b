"""The loop's learning rate, and states that are not its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from forerun.errors import TrainingError
from forerun.training.loop import learning_rate_factor
from recipes.windows import Windows, WindowSettings, train_on_windows


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    factors = [learning_rate_factor(step / 100, 0.1) for step in range(101)]
    assert max(factors) == factors[10] == 1.0
    assert factors[0] > 0
    assert factors[-1] == 0.0
    assert all(a >= b for a, b in pairwise(factors[10:]))


def test_a_state_of_another_recipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"model": {}}, path)
    settings = WindowSettings(max_tokens=1, max_seconds=1)
    model, windows = nn.Linear(2, 2), Windows(torch.zeros(9).numpy(), 0)
    with pytest.raises(TrainingError, match="does not belong to this recipe"):
        train_on_windows(model, lambda _, batch: batch.sum(), windows, settings, path)
