"""A small training loop with a fixed number of steps, averaged weights, and a state to resume from.

Every random number of a step depends on the seed and the step's index alone. So a run that was interrupted
ends with the same weights, bit for bit, as one that was not.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from diffusers.training_utils import EMAModel
from torch import Generator, Tensor, nn

from forerun.errors import ConfigError, TrainingError
from forerun.files import atomic_path
from forerun.progress import report

logger = logging.getLogger(__name__)

_PRIME = 1_000_003


@dataclass(frozen=True)
class AveragedTraining:
    """Settings of a training; the learning rate rises over the warm-up, then falls as a cosine to zero.

    Args:
        steps: number of steps of the optimizer.
        learning_rate: peak learning rate.
        warmup_steps: number of steps until the peak.
        ema_decay: decay of the averaged weights; smaller at first, so that the average forgets the start.
        clip: largest norm of the gradient.
        seed: seed of all random numbers.
        save_every_seconds: seconds between two saved states, and two lines of the log.
    """

    steps: int
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    ema_decay: float = 0.999
    clip: float = 1.0
    seed: int = 0
    save_every_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"training needs at least 1 step, got {self.steps}.")
        if not 0.0 <= self.ema_decay < 1.0:
            raise ConfigError(f"ema_decay must lie in [0, 1), got {self.ema_decay}.")

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        rise = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return self.learning_rate * rise * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))


class AveragedTrainer:
    """Trains `model` and leaves the averaged weights in it.

    Args:
        model: module to train; only parameters that require a gradient change.
        loss: function that computes the scalar loss of a step, and draws its batch by the generator alone.
        settings: training settings.
        state: file that a run resumes from, written atomically.
        what: name of the run in log and progress.

    Raises:
        TrainingError: for a state of another run, and for a loss that is not finite; the last good state is
            then on disk.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Generator], Tensor],
        settings: AveragedTraining,
        state: Path,
        *,
        what: str = "training",
    ) -> None:
        self.model, self.loss, self.settings = model, loss, settings
        self.state, self.what = state, what
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.average: Any = EMAModel(self.parameters, decay=settings.ema_decay)
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=1e-4
        )
        self.step = 0
        if state.exists():
            self._load()

    def run(self) -> None:
        """Train for the remaining steps, then put the averaged weights into the model."""
        saved = time.monotonic()
        self.model.train()
        while self.step < self.settings.steps:
            loss = self._train_step()
            report(self.what, self.step, self.settings.steps)
            if time.monotonic() - saved > self.settings.save_every_seconds:
                logger.info("%s: step %d, loss %.5f", self.what, self.step, loss)
                self._save()
                saved = time.monotonic()
        self._save()
        self.average.copy_to(self.parameters)
        self.model.eval()

    def _train_step(self) -> float:
        generator = Generator().manual_seed(self.settings.seed * _PRIME + self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(self.step)
        loss = self.loss(self.model, generator)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        if not (math.isfinite(loss.item()) and math.isfinite(norm.item())):
            raise TrainingError(
                f"{self.what}: the loss of step {self.step} is {loss.item()}, its gradient's norm "
                f"{norm.item()}; take a smaller learning rate or remove {self.state} to begin anew."
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.step(self.parameters)
        self.step += 1
        return float(loss.item())

    def _identity(self) -> dict[str, Any]:
        settings = replace(self.settings, save_every_seconds=0.0)
        return {"settings": asdict(settings), "shapes": [list(p.shape) for p in self.parameters]}

    def _save(self) -> None:
        content = {
            "identity": self._identity(),
            "step": self.step,
            "weights": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        with atomic_path(self.state) as temporary:
            torch.save(content, temporary)

    def _load(self) -> None:
        try:
            content = torch.load(self.state, weights_only=True)
            identity = content["identity"]
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError) as problem:
            raise TrainingError(
                f"{self.state} is not a training state; remove it to begin anew."
            ) from problem
        if identity != self._identity():
            raise TrainingError(
                f"{self.state} belongs to a run with other settings or another model; "
                "use those, or remove it to begin anew."
            )
        self.step = content["step"]
        self.model.load_state_dict(content["weights"])
        self.average.load_state_dict(content["average"])
        self.optimizer.load_state_dict(content["optimizer"])
