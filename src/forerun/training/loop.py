"""A training loop with a budget: it stops by tokens or by seconds, resumes, and logs its loss."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forerun.errors import TrainingError
from forerun.files import atomic_path
from forerun.training.windows import Windows

logger = logging.getLogger(__name__)

Loss = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Phase:
    """A stretch of training, up to a fraction of the budget, with one window length in tokens."""

    until: float
    window: int


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. The learning rate rises for `warmup` of the budget, then falls to zero linearly.

    The budget is spent when `max_tokens` or `max_seconds` (of training, not of the clock) is used
    up, whichever comes first.
    """

    max_tokens: int
    max_seconds: float
    batch_tokens: int = 8192
    micro_batch_tokens: int = 4096
    phases: tuple[Phase, ...] = (Phase(1.0, 256),)
    matrix_learning_rate: float = 0.02
    learning_rate: float = 0.003
    weight_decay: float = 0.01
    warmup: float = 0.02
    clip: float = 1.0
    seed: int = 0
    save_every_seconds: float = 300.0
    log_every_steps: int = 10


@dataclass
class Progress:
    """How much of its budget a run has used."""

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0

    def fraction(self, settings: TrainingSettings) -> float:
        return max(self.tokens / settings.max_tokens, self.seconds / settings.max_seconds)


def learning_rate_factor(fraction: float, warmup: float) -> float:
    """The share of the peak learning rate at `fraction` of the budget, both in [0, 1]."""
    rise = fraction / warmup if warmup > 0 else 1.0
    return max(0.0, min(1.0, rise + 0.01, (1.0 - fraction) / (1.0 - warmup)))


def make_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers; AdamW for the embedding, the norms and the biases."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inside = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if inside else others).append(parameter)
    adamw = torch.optim.AdamW(
        others, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    if not matrices:
        return [adamw]
    muon = torch.optim.Muon(
        matrices, lr=settings.matrix_learning_rate, weight_decay=settings.weight_decay
    )
    return [muon, adamw]


class Trainer:
    """Trains `model` on `windows` until the budget is spent; resumes from the file `state`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        windows: Windows,
        settings: TrainingSettings,
        state: Path,
    ) -> None:
        self.model, self.loss, self.windows, self.settings = model, loss, windows, settings
        self.state_path, self.log_path = state, state.with_suffix(".jsonl")
        self.device = next(model.parameters()).device
        self.optimizers = make_optimizers(model, settings)
        self.peaks = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.progress = Progress()
        if state.exists():
            self._load()

    def run(self) -> Progress:
        """Train until the budget is spent, then save. A spent budget returns at once."""
        self.model.train()
        saved = time.monotonic()
        resumed_from = self.progress.steps
        while (fraction := self.progress.fraction(self.settings)) < 1.0:
            started = time.monotonic()
            loss, tokens = self._step(fraction)
            if not loss == loss:
                raise TrainingError(f"the loss is NaN at step {self.progress.steps}.")
            self.progress.steps += 1
            self.progress.tokens += tokens
            self.progress.seconds += time.monotonic() - started
            if self.progress.steps % self.settings.log_every_steps == 0:
                self._log(loss)
            if time.monotonic() - saved > self.settings.save_every_seconds:
                self._save()
                saved = time.monotonic()
        if self.progress.steps > resumed_from:
            self._save()
        self.model.eval()
        return self.progress

    def _step(self, fraction: float) -> tuple[float, int]:
        settings = self.settings
        window = next(phase.window for phase in settings.phases if fraction < phase.until)
        rows = max(1, settings.batch_tokens // window)
        batch = torch.from_numpy(self.windows.batch(self.progress.tokens, window, rows))
        parts = torch.split(batch, max(1, settings.micro_batch_tokens // window))
        total = 0.0
        for part in parts:
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = self.loss(self.model, part.to(self.device)) * (len(part) / rows)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        factor = learning_rate_factor(fraction, settings.warmup)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        return total, rows * window

    def _log(self, loss: float) -> None:
        row = {"loss": round(loss, 4), **asdict(self.progress)}
        row["seconds"] = round(self.progress.seconds, 1)
        with self.log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        logger.info("%s", row)

    def _save(self) -> None:
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": asdict(self.progress),
        }
        with atomic_path(self.state_path) as temporary:
            torch.save(state, temporary)

    def _load(self) -> None:
        try:
            state = torch.load(self.state_path, map_location=self.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.progress = Progress(**state["progress"])
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise TrainingError(
                f"{self.state_path} does not belong to this recipe ({error}); delete it to start again."
            ) from error
        logger.info("resumed at %s", self.progress)
