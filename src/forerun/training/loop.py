"""A training loop that stops at a budget of tokens or seconds, and resumes."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from forerun.errors import TrainingError
from forerun.files import atomic_path
from forerun.progress import report

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LossPart:
    """Contribution of a micro-batch to the loss of a step: sum of totals / sum of weights.

    Args:
        total: weighted sum of losses, to be differentiated.
        weight: sum of the weights.
        tokens: tokens of the budget used.
    """

    total: Tensor
    weight: float
    tokens: int


Loss = Callable[[Any], LossPart]
"""Function that computes the loss of one micro-batch."""


@dataclass(frozen=True)
class TrainingSettings:
    """Budget, learning rates and schedule of a training.

    The learning rate rises for the share `warmup` of the budget, stays constant, and falls linearly to
    zero over the last share `decay`. The budget is spent when `max_tokens` or `max_seconds` (of training,
    not of the clock) is used up, whichever comes first.
    """

    max_tokens: int
    max_seconds: float
    matrix_learning_rate: float = 0.02
    learning_rate: float = 0.003
    weight_decay: float = 0.01
    warmup: float = 0.02
    decay: float = 0.98
    clip: float = 1.0
    save_every_seconds: float = 300.0
    log_every_steps: int = 10


@dataclass
class Spent:
    """Tokens, seconds and steps that a run has used so far."""

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0

    def fraction(self, settings: TrainingSettings) -> float:
        return max(self.tokens / settings.max_tokens, self.seconds / settings.max_seconds)


def learning_rate_factor(fraction: float, warmup: float, decay: float | None = None) -> float:
    """Share of the peak learning rate at `fraction` of the budget; all arguments in [0, 1].

    Without `decay`, the rate falls from the end of the warmup.
    """
    rise = fraction / warmup if warmup > 0 else 1.0
    fall = 1.0 - warmup if decay is None else decay
    return max(0.0, min(1.0, rise + 0.01, (1.0 - fraction) / fall if fall > 0 else 1.0))


def make_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Make Muon for matrices inside the layers, and AdamW for embeddings, output heads, norms, biases."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        outside = ("embed", "lm_head")
        inside = parameter.ndim == 2 and not any(part in name for part in outside)
        (matrices if inside else others).append(parameter)
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        rate, decay = settings.matrix_learning_rate, settings.weight_decay
        optimizers.append(torch.optim.Muon(matrices, lr=rate, weight_decay=decay))
    if others:
        rate = settings.learning_rate
        optimizers.append(
            torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        )
    return optimizers


class Trainer:
    """Takes steps of a training until the budget is spent; resumes from the file `state`.

    Args:
        model: module whose parameters are trained.
        loss: function that computes the loss of a micro-batch.
        settings: budget and schedule.
        state: file that a run resumes from.
        recipe: what the state depends on, in JSON's types.

    Attributes:
        notes: what a caller needs to go on, in JSON's types; saved with the state.

    Raises:
        TrainingError: for a state of another recipe.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        settings: TrainingSettings,
        state: Path,
        *,
        recipe: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.model, self.loss, self.settings = model, loss, settings
        self.state_path, self.recipe = state, dict(recipe)
        self.notes: dict[str, Any] = {}
        self.optimizers = make_optimizers(model, settings)
        self.peaks = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.progress = Spent()
        self.last_loss = float("nan")
        self._saved_at = time.monotonic()
        self._saved: tuple[int, dict[str, Any]] = (-1, {})
        if state.exists():
            self._load()

    def budget(self) -> Iterator[float]:
        """Yield the share of the budget that is spent, before each step, until all is; then save.

        The caller takes the steps, by `step`.
        """
        self.model.train()
        while (fraction := self.progress.fraction(self.settings)) < 1.0:
            yield fraction
            # In thousandths of the budget.
            spent = 1000 * min(1.0, self.progress.fraction(self.settings))
            report("training", int(spent), 1000)
        self.save()
        self.model.eval()

    def step(self, parts: Sequence[Any]) -> None:
        """Take one step on micro-batches, and save the state now and then.

        Raises:
            TrainingError: if the loss is not a number; the last saved state is of an earlier step.
        """
        started = time.monotonic()
        self.progress.tokens += self._step(parts)
        self.progress.steps += 1
        self.progress.seconds += time.monotonic() - started
        if self.progress.steps % self.settings.log_every_steps == 0:
            logger.info("loss %.4f at %s", self.last_loss, self.progress)
        if time.monotonic() - self._saved_at > self.settings.save_every_seconds:
            self.save()

    def _step(self, parts: Sequence[Any]) -> int:
        """Take one step of the optimizers; returns the number of tokens used."""
        total, weight, tokens = 0.0, 0.0, 0
        trained = [p for p in self.model.parameters() if p.requires_grad]
        for micro_batch in parts:
            part = self.loss(micro_batch)
            part.total.backward()  # type: ignore[no-untyped-call]
            total += part.total.item()
            weight += part.weight
            tokens += part.tokens
        self.last_loss = total / weight if weight else 0.0
        self._refuse_nonsense("loss", self.last_loss)
        for parameter in trained:
            if parameter.grad is not None:
                parameter.grad.div_(max(weight, 1e-9))
        norm = nn.utils.clip_grad_norm_(trained, self.settings.clip)
        self._refuse_nonsense("gradient's norm", float(norm))
        fraction = self.progress.fraction(self.settings)
        factor = learning_rate_factor(fraction, self.settings.warmup, self.settings.decay)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        return tokens

    def _refuse_nonsense(self, what: str, value: float) -> None:
        """End training before a step that would ruin the weights.

        Raises:
            TrainingError: for NaN and infinity; names the state to continue from.
        """
        if abs(value) < float("inf"):
            return
        left = "no state has been saved: begin again"
        if self._saved[0] >= 0:
            name = self.state_path.name
            left = f"the state of step {self._saved[0]} is in {name}: go on from there"
        raise TrainingError(
            f"the {what} is {value} at step {self.progress.steps}; {left} with a lower learning rate."
        )

    def save(self) -> None:
        """Write the state, unless the file has it already."""
        content = (self.progress.steps, self.notes)
        if self._saved == content:
            return
        state: dict[str, Any] = {
            "recipe": self.recipe,
            "notes": self.notes,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": asdict(self.progress),
        }
        try:
            with atomic_path(self.state_path) as temporary:
                torch.save(state, temporary)
        except (OSError, RuntimeError) as error:
            raise TrainingError(
                f"{self.state_path} cannot be written ({error}); the state before stays."
            ) from error
        self._saved, self._saved_at = content, time.monotonic()

    def _load(self) -> None:
        try:
            state = torch.load(self.state_path, map_location="cpu", weights_only=True)
            if state["recipe"] != self.recipe:
                raise TrainingError(
                    f"{self.state_path.parent} holds a training by other settings; give another directory, "
                    "or delete that folder to start again."
                )
            self.notes = state["notes"]
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.progress = Spent(**state["progress"])
        except (
            *(KeyError, RuntimeError, ValueError, TypeError, EOFError),
            *(OSError, pickle.UnpicklingError),
        ) as error:
            raise TrainingError(
                f"{self.state_path} does not belong to this recipe ({error}); delete it to start again."
            ) from error
        self._saved = (self.progress.steps, self.notes)
        logger.info("resumed at %s", self.progress)
