"""The training loop: a resumed run is the uninterrupted one, bit for bit; nothing bad is written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

from forerun.diffusion.training import AveragedTrainer, AveragedTraining
from forerun.errors import ConfigError, TrainingError
from forerun.progress import watched_by

SETTINGS = AveragedTraining(steps=12, learning_rate=0.05, warmup_steps=2, save_every_seconds=0.0)


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss(trained: nn.Module, generator: Generator) -> Tensor:
    inputs = torch.randn(8, 3, generator=generator)
    error: Tensor = (trained(inputs) - inputs.sum(-1, keepdim=True)).square().mean()
    return error


class StoppedError(Exception):
    pass


def stopping_at(step: int) -> object:
    def watch(what: str, done: int, total: int) -> None:
        if done == step:
            raise StoppedError

    return watch


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, stopped = model(), model()
    AveragedTrainer(whole, loss, SETTINGS, tmp_path / "whole.pt").run()
    for step in (3, 7):
        with pytest.raises(StoppedError), watched_by(stopping_at(step)):  # type: ignore[arg-type]
            AveragedTrainer(stopped, loss, SETTINGS, tmp_path / "stopped.pt").run()
        stopped = model()
    AveragedTrainer(stopped, loss, SETTINGS, tmp_path / "stopped.pt").run()
    for one, other in zip(whole.parameters(), stopped.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_lowers_the_loss_and_leaves_the_averaged_weights(tmp_path: Path) -> None:
    trained = model()
    before = loss(trained, Generator().manual_seed(9)).item()
    settings = AveragedTraining(steps=200, learning_rate=0.05, warmup_steps=2, ema_decay=0.9)
    trainer = AveragedTrainer(trained, loss, settings, tmp_path / "state.pt")
    trainer.run()
    assert loss(trained, Generator().manual_seed(9)).item() < before / 100
    assert torch.equal(trained.weight, trainer.average.shadow_params[0])
    assert not trained.training


def test_a_finished_run_is_only_read(tmp_path: Path) -> None:
    first, second = model(), model()
    AveragedTrainer(first, loss, SETTINGS, tmp_path / "state.pt").run()

    def never(trained: nn.Module, generator: Generator) -> Tensor:
        raise AssertionError

    AveragedTrainer(second, never, SETTINGS, tmp_path / "state.pt").run()
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_nan_is_an_error_and_the_state_stays_good(kind: str, tmp_path: Path) -> None:
    def poisoned(trained: nn.Module, generator: Generator) -> Tensor:
        found = loss(trained, generator)
        if trainer.step < 5:
            return found
        if kind == "loss":
            return found * math.nan
        # The root's slope at zero is infinite; its value is not.
        weight = next(trained.parameters())
        return found + (weight - weight.detach()).abs().sum().sqrt()

    trained = model()
    trainer = AveragedTrainer(trained, poisoned, SETTINGS, tmp_path / "state.pt")
    with pytest.raises(TrainingError, match="step 5"):
        trainer.run()
    again = model()
    resumed = AveragedTrainer(again, loss, SETTINGS, tmp_path / "state.pt")
    assert resumed.step == 5
    assert all(bool(p.isfinite().all()) for p in again.parameters())
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.pt"
    AveragedTrainer(model(), loss, SETTINGS, state).run()
    with pytest.raises(TrainingError, match="other settings or another model"):
        AveragedTrainer(nn.Linear(4, 1), loss, SETTINGS, state)
    with pytest.raises(TrainingError, match="other settings or another model"):
        AveragedTrainer(model(), loss, AveragedTraining(steps=13), state)
    state.write_bytes(b"nothing")
    with pytest.raises(TrainingError, match="not a training state"):
        AveragedTrainer(model(), loss, SETTINGS, state)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 1, "ema_decay": 1.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        AveragedTraining(**wrong)  # type: ignore[arg-type]
