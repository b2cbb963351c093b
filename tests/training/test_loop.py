"""The loop's learning rate, its threads, and states that are not its own."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forerun.errors import TrainingError
from forerun.training import drafter_run
from forerun.training.loop import Trainer, learning_rate_factor
from recipes.windows import Windows, WindowSettings, train_on_windows
from tests.helpers.drafter_runs import run_of, save_data, save_target


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


def test_two_threads_make_the_steps_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches of a step side by side: the same losses and weights, whichever ends first."""
    model, data = save_target(tmp_path / "target", "llama"), save_data(tmp_path / "data.jsonl")
    made, states = [], []
    for threads in (1, 2):
        monkeypatch.setattr(drafter_run, "threads_of", partial(_threads, threads))
        out = tmp_path / str(threads)
        run = run_of("eagle3", model, data, out, micro_batches=3)
        with monkeypatch.context() as patched:
            busy = _most_at_once(patched)
            curve = run.run().curve
        assert max(busy) == threads
        made.append([point.loss for point in curve])
        states.append(run.head.module.state_dict())
    assert len(made[0]) >= 2
    assert made[0] == made[1]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def _threads(count: int, *_: object) -> int:
    return count


def _most_at_once(patched: pytest.MonkeyPatch) -> list[int]:
    """How many micro-batches were being worked on whenever one began; the first of a step ends last."""
    counts, working = [0], [0]
    learn = Trainer._learn

    def counted(trainer: Trainer, *given: Any) -> Any:
        working[0] += 1
        counts.append(working[0])
        if working[0] == 1:
            time.sleep(0.05)
        made = learn(trainer, *given)
        working[0] -= 1
        return made

    patched.setattr(Trainer, "_learn", counted)
    return counts
