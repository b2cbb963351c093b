"""Training on windows of a long text, in a random order that a run which resumes repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.errors import TrainingError
from forerun.training.loop import LossPart, Spent, Trainer, TrainingSettings


class Windows:
    """Windows of tokens in a random order that depends on (seed, epoch) alone.

    Each epoch cuts the text at another offset and visits every window once. So a run that resumes at some
    number of tokens sees the same text as a run that never stopped.
    """

    def __init__(self, tokens: np.ndarray, seed: int) -> None:
        self.tokens, self.seed = tokens, seed

    def batch(self, start: int, length: int, count: int) -> np.ndarray:
        """The next windows of a run that has seen `start` tokens, [count, length + 1]."""
        per_epoch = (len(self.tokens) - 1) // length - 1
        if per_epoch < 1:
            raise TrainingError(f"{len(self.tokens)} tokens are too few for windows of {length}.")
        rows = []
        for index in range(start // length, start // length + count):
            epoch, position = divmod(index, per_epoch)
            offset, order = _epoch(self.seed, epoch, length, per_epoch)
            begin = offset + int(order[position]) * length
            rows.append(self.tokens[begin : begin + length + 1])
        return np.stack(rows).astype(np.int64)


@lru_cache(maxsize=1)
def _epoch(seed: int, epoch: int, length: int, per_epoch: int) -> tuple[int, np.ndarray]:
    """Start of an epoch's first window, and the order of the windows."""
    random = np.random.default_rng([seed, epoch, length])
    return int(random.integers(length)), random.permutation(per_epoch)


@dataclass(frozen=True)
class Phase:
    """A phase of training, up to a fraction of the budget, with one window length in tokens."""

    until: float
    window: int


@dataclass(frozen=True)
class WindowSettings(TrainingSettings):
    """Settings for training on windows of text."""

    seed: int = 0
    batch_tokens: int = 8192
    micro_batch_tokens: int = 4096
    phases: tuple[Phase, ...] = (Phase(1.0, 256),)


def train_on_windows(
    model: nn.Module,
    mean_loss: Callable[[nn.Module, Tensor], Tensor],
    windows: Windows,
    settings: WindowSettings,
    state: Path,
) -> Spent:
    """Train on windows, given the mean loss of a micro-batch [B, length + 1]."""
    device = next(model.parameters()).device

    def loss(batch: Tensor) -> LossPart:
        with torch.autocast(device.type, torch.bfloat16):
            total = mean_loss(model, batch) * len(batch)
        return LossPart(total, len(batch), len(batch) * (batch.shape[1] - 1))

    trainer = Trainer(model, loss, settings, state)
    for fraction in trainer.budget():
        window = next(phase.window for phase in settings.phases if fraction < phase.until)
        rows = max(1, settings.batch_tokens // window)
        batch = torch.from_numpy(windows.batch(trainer.progress.tokens, window, rows)).to(device)
        trainer.step(torch.split(batch, max(1, settings.micro_batch_tokens // window)))
    return trainer.progress


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of `targets` [B, n] under `logits` [B, n, V]."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def distillation_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Mean KL(teacher || student) over all positions; both [B, n, V].

    Acceptance is 1 - total variation (Leviathan et al., arXiv 2211.17192, corollary 3.6). By Pinsker's
    inequality, KL bounds it from below, and KL is smooth.
    """
    teacher = functional.log_softmax(teacher_logits.float(), dim=-1)
    student = functional.log_softmax(logits.float(), dim=-1)
    return functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1).mean()
