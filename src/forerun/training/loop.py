"""A training loop that stops at a budget of tokens or seconds, resumes, and logs its loss."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from forerun.errors import TrainingError
from forerun.files import atomic_path
from forerun.models.cpu.threads import num_threads
from forerun.progress import report
from forerun.training.processes import ALONE, Processes

logger = logging.getLogger(__name__)

R = TypeVar("R")


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


Gradients = Sequence[Tensor | None]
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
    seed: int = 0
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


class BatchSource(Protocol):
    """A source of micro-batches that depends on the progress alone, so that a run can resume."""

    def step(self, progress: Spent, fraction: float) -> Sequence[Any]:
        """The micro-batches of the next step, for all processes together."""


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
        outside = ("embed", "lm_head", "markov", "confidence")
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
    """Trains `model` until the budget is spent; resumes from the file `state`.

    Args:
        model: module whose parameters are trained.
        loss: function that computes the loss of a micro-batch.
        source: source of the micro-batches.
        settings: budget and schedule.
        state: file that a run resumes from. The log lies beside it, and begins anew if the file is
            missing.
        processes: processes that share the micro-batches of each step.
        threads: number of threads that share the micro-batches of a process.
        watch: called after each step; True ends the run.

    Raises:
        TrainingError: for a state of another recipe.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        source: BatchSource,
        settings: TrainingSettings,
        state: Path,
        *,
        processes: Processes = ALONE,
        threads: int = 1,
        watch: Callable[[Trainer], bool] | None = None,
    ) -> None:
        self.model, self.loss, self.source, self.settings = model, loss, source, settings
        self.state_path, self.log_path = state, state.with_suffix(".jsonl")
        self.optimizers = make_optimizers(model, settings)
        self.peaks = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.progress = Spent()
        self.last_loss = float("nan")
        self._processes, self._threads, self._watch = processes, threads, watch
        self._saved = -1
        if state.exists():
            self._load()
        elif processes.first:
            self.log_path.unlink(missing_ok=True)

    def run(self) -> Spent:
        """Train until the budget is spent, then save; return at once if it is spent already.

        Raises:
            TrainingError: if the loss is not a number; the last saved state is of an earlier step.
        """
        self.model.train()
        saved = time.monotonic()
        while (fraction := self.progress.fraction(self.settings)) < 1.0:
            started = time.monotonic()
            tokens = self._step(fraction)
            self.progress.steps += 1
            self.progress.tokens += tokens
            # All processes count the same seconds, so they stop together.
            self.progress.seconds += self._processes.mean(time.monotonic() - started)
            if self.progress.steps % self.settings.log_every_steps == 0:
                self.log({"loss": round(self.last_loss, 4)})
            if time.monotonic() - saved > self.settings.save_every_seconds:
                self.save()
                saved = time.monotonic()
            # In thousandths of the budget.
            spent = 1000 * min(1.0, self.progress.fraction(self.settings))
            report("training", int(spent), 1000)
            if self._watch is not None and self._watch(self):
                break
        self.save()
        self.model.eval()
        return self.progress

    def _step(self, fraction: float) -> int:
        """Take one step of the optimizers; returns the number of tokens used."""
        parts = self.source.step(self.progress, fraction)
        sums = torch.zeros(3, dtype=torch.float64)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        learn = partial(self._learn, trained)
        for figures, gradients in self._each(learn, self._processes.share(parts)):
            sums += torch.tensor(figures)
            for parameter, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    seen = parameter.grad
                    parameter.grad = gradient if seen is None else seen.add_(gradient)
        total, weight, tokens = self._processes.sum(sums).tolist()
        self.last_loss = total / weight if weight else 0.0
        self._refuse_nonsense("loss", self.last_loss)
        norm = nn.utils.clip_grad_norm_(self._gradients_over(max(weight, 1e-9)), self.settings.clip)
        self._refuse_nonsense("gradient's norm", float(norm))
        factor = learning_rate_factor(fraction, self.settings.warmup, self.settings.decay)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        return int(tokens)

    def _each(self, work: Callable[[Any], R], parts: Sequence[Any]) -> Iterator[R]:
        """Apply `work` to each micro-batch, on the process's threads, and yield the results in order."""
        if self._threads == 1:
            yield from map(work, parts)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(work, parts)

    def _learn(self, trained: Sequence[nn.Parameter], micro: Any) -> tuple[list[float], Gradients]:
        """Loss, weight and tokens of a micro-batch, and its gradients.

        The gradients are returned, not accumulated, so that they are added in a fixed order whichever
        thread is first.
        """
        part = self.loss(micro)
        gradients = torch.autograd.grad(part.total, trained, allow_unused=True)
        return [part.total.item(), part.weight, part.tokens], gradients

    def _gradients_over(self, weight: float) -> list[nn.Parameter]:
        """Sum the gradients over all processes, divide them by `weight`, and return their parameters."""
        trained = []
        for parameter in self.model.parameters():
            if parameter.grad is None and parameter.requires_grad and self._processes.count > 1:
                # Another process may have a gradient here, and all must take part in every sum.
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                parameter.grad.copy_(self._processes.sum(parameter.grad) / weight)
                trained.append(parameter)
        return trained

    def _refuse_nonsense(self, what: str, value: float) -> None:
        """End training before a step that would ruin the weights.

        Raises:
            TrainingError: for NaN and infinity; names the state to continue from.
        """
        if abs(value) < float("inf"):
            return
        left = "no state has been saved: begin again"
        if self._saved >= 0:
            name = self.state_path.name
            left = f"the state of step {self._saved} is in {name}: go on from there"
        raise TrainingError(
            f"the {what} is {value} at step {self.progress.steps}; {left} with a lower learning rate."
        )

    def log(self, figures: dict[str, Any]) -> None:
        """Append a line with the figures and the progress to the log."""
        if not self._processes.first:
            return
        row = {**figures, **asdict(self.progress)}
        row["seconds"] = round(self.progress.seconds, 1)
        with self.log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        logger.info("%s", row)

    def save(self) -> None:
        """Write the state, unless the file has it already."""
        if not self._processes.first or self._saved == self.progress.steps:
            return
        state: dict[str, Any] = {
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
        self._saved = self.progress.steps

    def _load(self) -> None:
        try:
            state = torch.load(self.state_path, map_location="cpu", weights_only=True)
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
        self._saved = self.progress.steps
        self._cut_log()
        logger.info("resumed at %s", self.progress)

    def _cut_log(self) -> None:
        """Remove log lines of steps after the loaded state, because those steps are repeated."""
        if not self._processes.first or not self.log_path.exists():
            return
        lines = self.log_path.read_text("utf-8").splitlines()
        kept = [line for line in lines if _steps_of(line) <= self.progress.steps]
        with atomic_path(self.log_path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept), "utf-8")


def _steps_of(line: str) -> float:
    """Number of steps in a line of the log; infinite for a line that was cut off."""
    try:
        return float(json.loads(line)["steps"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def threads_of(device: torch.device, micro_batches: int) -> int:
    """Number of micro-batches that run in parallel, each on one thread; 1 off the CPU.

    Threads that share a product would wait for each other after every product.
    """
    threads = min(num_threads(), micro_batches) if device.type == "cpu" else 1
    if threads > 1:
        torch.set_num_threads(1)
    return threads
