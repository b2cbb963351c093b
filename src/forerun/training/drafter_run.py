"""A training run of a drafter: reads conversations, trains, validates, and writes the drafter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.engine.chat import ChatTemplate
from forerun.errors import TrainingError
from forerun.heads.files import CARD, OWN, open_head, write_head
from forerun.models.checkpoint import Checkpoint
from forerun.models.cpu.threads import num_threads
from forerun.models.placement import Placement
from forerun.training.acceptance import AcceptanceTable
from forerun.training.card import CERTIFICATE, PICTURE, card_of
from forerun.training.conversations import (
    BatchStream,
    Conversation,
    ConversationBatch,
    held_out,
    read_conversations,
)
from forerun.training.drafter_settings import DrafterSettings, HeadSettings
from forerun.training.earlier import (
    broken,
    ids_of,
    read_object,
    take_weights,
    tokens_of,
    write_object,
)
from forerun.training.loop import Progress, Trainer, TrainingSettings
from forerun.training.processes import join, locked
from forerun.training.recipes import Recipe, Untrained, draft_ids

_UNLIMITED = 10**15
WORK = "training"
"""Folder in a drafter's directory with the state that a run resumes from."""


@dataclass
class Report:
    """The result of a training run.

    Args:
        lengths: expected acceptance length on held-out text by category, at the best validation.
        positions: acceptance of each token of the draft by category.
        untrained: acceptance lengths before training.
        progress: progress of the training.
        conversations: number of conversations read, by use (trained on, held out, left out).
        weight_bytes: bytes of all tensors as written.
        trained_bytes: bytes of the trained tensors; the others are the target's.
        curve: points of the mean acceptance length: minutes of training, tokens, length.
    """

    lengths: Mapping[str, float] = field(default_factory=dict)
    positions: Mapping[str, Sequence[float]] = field(default_factory=dict)
    untrained: Mapping[str, float] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    conversations: Mapping[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    trained_bytes: int = 0
    curve: list[tuple[float, int, float]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The report as a flat dictionary, ready for JSON."""
        own = {name: value for name, value in vars(self).items() if name != "progress"}
        return {**own, **vars(self.progress)}

    @property
    def mean_length(self) -> float:
        return sum(self.lengths.values()) / len(self.lengths) if self.lengths else 1.0


OnValidated = Callable[[Report, float, float], None]
"""Callback after a validation; takes the report, the last loss, and tokens per second."""


class DrafterRun:
    """One training of a head or a draft model, from the files of conversations to its directory.

    Args:
        recipe: recipe for the kind of drafter.
        own: settings of that kind of drafter.
        settings: settings that all kinds share.
        model: name or path of the target.
        data: files written by `forerun train data`.
        out: directory of the drafter; a run continues from the folder `training` in it.
        on_validated: called after each validation.
        begin_with: directory of a drafter of this kind, whose weights training begins with.

    Raises:
        ForerunError: for unusable input, before any training.
    """

    def __init__(
        self,
        recipe: Recipe,
        own: Any,
        settings: DrafterSettings,
        model: str,
        data: Sequence[str],
        out: Path,
        on_validated: OnValidated | None = None,
        begin_with: str | None = None,
    ) -> None:
        self.processes, self._locked = join(), False
        self.checkpoint = Checkpoint.open(model)
        self.settings, self.own, self.out = settings, own, out
        self._recipe, self._on_validated = recipe, on_validated
        kept = read_conversations(
            data,
            self.checkpoint.summary.vocab_size,
            min(settings.max_length, self.checkpoint.summary.max_context),
        )
        train, self.held = held_out(kept.conversations, settings.seed)
        self.stream = BatchStream(train, settings.micro_batch_tokens, settings.seed)
        self.report = Report(
            conversations={
                "trained on": len(train),
                "held out": len(self.held),
                "too long": kept.too_long,
                "hardly answered": kept.too_short,
            }
        )
        torch.manual_seed(settings.seed)
        self.target = self._load_target()
        self._threads = threads_of(self.target.device, settings.micro_batches)
        earlier = None if begin_with is None else open_head(begin_with, recipe.__name__)
        self.ids = self._draft_ids(train) if earlier is None else ids_of(earlier, self.target)
        self.head: Untrained = recipe(self.target, self.ids, own, self.checkpoint)
        self._begun_tokens = 0
        if earlier is not None:
            take_weights(self.head, earlier)
            self._begun_tokens = tokens_of(earlier)
        self.head.module.to(self.target.device)
        self.report.weight_bytes, self.report.trained_bytes = _bytes_of(self.head)
        self._best, self._stale, self._due = 0.0, 0, 0.0
        self._seen, self._rate = (0.0, 0), 0.0

    def run(self) -> Report:
        """Train until the budget or the patience is spent, and write the best drafter.

        A resumed run may have spent them already.

        Raises:
            TrainingError: if the loss is not a number, the state is of another recipe, or another run
                trains in the directory.
        """
        work = self.out / WORK
        with self.locked():
            return self._run(work)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context in which no other run works in the directory of the drafter; it may be nested.

        Raises:
            TrainingError: if another run works in it.
        """
        if self._locked or not self.processes.first:
            yield
            return
        with locked(self.out / WORK):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def _run(self, work: Path) -> Report:
        self._check_recipe(work / "recipe.json")
        trainer = Trainer(
            self.head.module,
            self.head.objective,
            self,
            self._training_settings(),
            work / "state.pt",
            processes=self.processes,
            threads=self._threads,
            watch=self._watch,
        )
        self._resume(work / "curve.json", trainer.progress)
        if not self.report.untrained:
            self.report.untrained = self.evaluate().lengths
        self._due = trainer.progress.seconds + 60 * self.settings.validate_minutes
        self._seen = (trainer.progress.seconds, trainer.progress.tokens)
        if self._stale < self.settings.patience:
            trainer.run()
        if not self.report.curve or self.report.curve[-1][1] != trainer.progress.tokens:
            self._judge(trainer)
        return self.report

    @property
    def kind(self) -> str:
        """Kind of the drafter, which is the name of the method that drafts with it."""
        return self._recipe.__name__

    def step(self, progress: Progress, fraction: float) -> list[ConversationBatch]:
        """The micro-batches of the next step; see `loop.Source`."""
        count = self.settings.micro_batches
        return [self.stream.batch(progress.steps * count + i) for i in range(count)]

    def _watch(self, trainer: Trainer) -> bool:
        if trainer.progress.seconds < self._due:
            return False
        self._due = trainer.progress.seconds + 60 * self.settings.validate_minutes
        self._judge(trainer)
        return self._stale >= self.settings.patience

    def _judge(self, trainer: Trainer) -> None:
        """Validate, and write the drafter if it is the best so far."""
        table, progress = self.evaluate(), trainer.progress
        seconds, tokens = self._seen
        if progress.tokens > tokens:
            self._rate = (progress.tokens - tokens) / max(progress.seconds - seconds, 1e-9)
        self._seen = (progress.seconds, progress.tokens)
        report = self.report
        report.curve.append((progress.seconds / 60, progress.tokens, table.mean_length))
        trainer.log({"acceptance_length": table.mean_length, "lengths": dict(table.lengths)})
        self._stale = 0 if table.mean_length > self._best else self._stale + 1
        if not self._stale:
            self._best = table.mean_length
            report.lengths, report.positions = table.lengths, table.positions
            report.progress = Progress(**vars(progress))
            if self.processes.first:
                self.write()
        self._remember()
        trainer.save()
        if self._on_validated is not None and self.processes.first:
            self._on_validated(report, trainer.last_loss, self._rate)

    def write(self) -> None:
        """Write the drafter's directory: config, weights, forerun.json, and the card.

        Raises:
            CheckpointError: if it cannot be written; the earlier files then stay.
        """
        tensors = _stored(self.head)
        recipe = self._recipe_facts()
        if isinstance(self.settings, HeadSettings):
            # The number in use differs from the setting if the target has fewer tokens, or if training
            # began with another head.
            recipe["settings"]["draft_vocab_size"] = len(self.ids)
        if self._begun_tokens:
            recipe["begun_with_tokens"] = self._begun_tokens
        own = {
            "format_version": 1,
            "target": self._target_facts(),
            "hidden_layers": list(self.head.hidden_layers),
            "recipe": recipe,
            "report": self.report.as_dict(),
        }
        texts: dict[str, str | bytes] = {
            **self.head.files,
            OWN: json.dumps(own, indent=2) + "\n",
            CARD: card_of(self.kind, own),
        }
        write_head(self.out, self.head.config, tensors, texts)
        # These files belong to earlier weights.
        for name in (CERTIFICATE, PICTURE):
            (self.out / name).unlink(missing_ok=True)

    def evaluate(self, ranks: int = 0) -> AcceptanceTable:
        """Measure acceptance on the held-out conversations.

        Args:
            ranks: number of siblings whose acceptance is measured too.
        """
        module = self.head.module
        module.eval()
        held = sorted(self.held, key=len)
        batches = []
        while held:
            count = max(1, self.settings.micro_batch_tokens // len(held[-1]))
            batches.append(ConversationBatch.of(held[-count:]))
            held = held[:-count]
        table = self.head.objective.evaluate(batches, ranks)
        module.train()
        return table

    def _load_target(self) -> CausalLM:
        """Load the target on the backend that runs training texts fastest."""
        run = self.checkpoint.run_config(Placement("bf16", "auto", "torch"))
        return self.checkpoint.load(run)

    def _draft_ids(self, train: Sequence[Conversation]) -> Tensor:
        vocab_size = self.target.vocab_size
        if not isinstance(self.settings, HeadSettings):
            return torch.arange(vocab_size)
        answers = torch.tensor([token for c in train for token in c.answer_ids])
        counts = torch.bincount(answers, minlength=vocab_size)
        return draft_ids(counts, self.settings.draft_vocab_size, self.checkpoint.eos_token_ids)

    def _training_settings(self) -> TrainingSettings:
        own = self.settings
        return TrainingSettings(
            max_tokens=own.tokens or _UNLIMITED,
            max_seconds=60 * own.minutes,
            matrix_learning_rate=own.matrix_learning_rate,
            learning_rate=own.learning_rate,
            weight_decay=0.0,
            warmup=0.02,
            decay=0.3,
            seed=own.seed,
        )

    def _recipe_facts(self) -> dict[str, Any]:
        return {
            "method": self.kind,
            "settings": asdict(self.settings),
            "head": asdict(self.own),
        }

    def _target_facts(self) -> dict[str, Any]:
        template = ChatTemplate.of(self.checkpoint.tokenizer)
        return {
            "name": self.checkpoint.name,
            "hidden_size": self.target.hidden_size,
            "num_layers": self.target.num_layers,
            "vocab_size": self.target.vocab_size,
            "chat_template": template and template.sha256,
        }

    def _check_recipe(self, path: Path) -> None:
        """Refuse to continue a state of another recipe.

        Raises:
            TrainingError: for other settings than the state's; names the folder.
        """
        facts = json.loads(json.dumps({**self._recipe_facts(), "target": self._target_facts()}))
        # A run may continue with a larger budget. Any other change would make another drafter.
        for name in ("minutes", "tokens", "validate_minutes", "patience"):
            facts["settings"].pop(name, None)
        if path.exists() and read_object(path) != facts:
            raise TrainingError(
                f"{path.parent} holds a training by other settings; give another directory, or delete "
                "that folder to start again."
            )
        if self.processes.first:
            write_object(path, facts)

    def _remember(self) -> None:
        """Save the validations for a run that resumes."""
        if self.processes.first:
            content = {**vars(self.report), "progress": asdict(self.report.progress)}
            write_object(self.out / WORK / "curve.json", {"best": self._best, **content})

    def _resume(self, path: Path, progress: Progress) -> None:
        """Load the validations of an earlier run, up to the step of its state."""
        if not progress.steps and self.processes.first:
            path.unlink(missing_ok=True)
        if not progress.steps or not path.exists():
            return
        content = read_object(path)
        try:
            self._best = float(content["best"])
            points = [(float(m), int(t), float(n)) for m, t, n in content["curve"]]
            for name in ("lengths", "positions", "untrained"):
                setattr(self.report, name, dict(content[name]))
            self.report.progress = Progress(**content["progress"])
        except (KeyError, TypeError, ValueError) as error:
            raise broken(path) from error
        self.report.curve = [point for point in points if point[1] <= progress.tokens]
        lengths = [length for _, _, length in self.report.curve]
        if lengths:
            self._stale = len(lengths) - 1 - lengths.index(max(lengths))


def threads_of(device: torch.device, micro_batches: int) -> int:
    """Number of micro-batches that run in parallel, each on one thread; 1 off the CPU.

    Threads that share a product would wait for each other after every product.
    """
    threads = min(num_threads(), micro_batches) if device.type == "cpu" else 1
    if threads > 1:
        torch.set_num_threads(1)
    return threads


def _stored(drafter: Untrained) -> dict[str, Tensor]:
    """Tensors of a drafter as they are written."""
    return {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in drafter.tensors().items()
    }


def _bytes_of(drafter: Untrained) -> tuple[int, int]:
    """Bytes of a drafter's tensors, and of the trained ones among them."""
    sizes = {name: tensor.nbytes for name, tensor in _stored(drafter).items()}
    trained = {name for name, tensor in drafter.module.named_parameters() if tensor.requires_grad}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if name in trained)
