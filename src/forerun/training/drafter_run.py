"""A training run of a drafter: reads conversations, trains, validates, and writes the drafter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.engine.chat import ChatTemplate
from forerun.errors import TrainingError
from forerun.files import atomic_path
from forerun.heads.files import CARD, OWN, open_head, write_head
from forerun.models.checkpoint import Checkpoint
from forerun.models.placement import Placement
from forerun.training.acceptance import AcceptanceTable
from forerun.training.conversations import (
    BatchStream,
    Example,
    ExampleBatch,
    held_out,
    read_conversations,
)
from forerun.training.draft import draft_model
from forerun.training.dspark import dspark
from forerun.training.eagle3 import eagle3
from forerun.training.layer_skip import layer_skip
from forerun.training.loop import Spent, Trainer, TrainingSettings, threads_of
from forerun.training.medusa import medusa
from forerun.training.processes import join, locked
from forerun.training.result import CERTIFICATE, PICTURE, TrainingReport, card_of, draw
from forerun.training.settings import DrafterSettings, HeadSettings
from forerun.training.untrained import (
    Untrained,
    frequent_ids,
    ids_of,
    take_weights,
    tokens_of,
)

RECIPES: Mapping[str, Callable[[CausalLM, Tensor, Any, Checkpoint], Untrained]] = {
    "draft": draft_model,
    "dspark": dspark,
    "eagle3": eagle3,
    "layer_skip": layer_skip,
    "medusa": medusa,
}
"""Function that makes an untrained drafter of each kind."""
METHODS = {"draft": "draft_model"}
"""Names of methods that are not the kind of their drafter."""
_UNLIMITED = 10**15
_MEASURED = ("curve_by_category", "contexts", "confidence_errors", "real_run")
WORK = "training"
"""Folder in a drafter's directory with the state that a run resumes from."""


OnValidated = Callable[[TrainingReport, float, float], None]
"""Callback after a validation; takes the report, the last loss, and tokens per second."""


class DrafterRun:
    """One training of a head or a draft model, from the files of conversations to its directory.

    Args:
        kind: kind of the drafter, a key of `RECIPES`.
        own: settings of that kind of drafter.
        settings: settings that all kinds share.
        model: name or path of the target.
        data: files written by `forerun train data`.
        out: directory of the drafter; a run continues from the folder `training` in it.
        on_validated: called after each validation.
        begin_with: directory of a drafter of this kind, whose weights training begins with.

    Attributes:
        kind: name of the method that drafts with the drafter.
        report: figures of the training.
        measured: further entries of forerun.json, measured of the weights as they are written.

    Raises:
        ForerunError: for unusable input, before any training.
    """

    def __init__(
        self,
        kind: str,
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
        self.kind, self._on_validated = METHODS.get(kind, kind), on_validated
        self.measured: dict[str, Any] = {}
        kept = read_conversations(
            data,
            self.checkpoint.summary.vocab_size,
            min(settings.max_length, self.checkpoint.summary.max_context),
        )
        train, self.held = held_out(kept.conversations, settings.seed)
        self.stream = BatchStream(train, settings.micro_batch_tokens, settings.seed)
        self.report = TrainingReport(
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
        earlier = None if begin_with is None else open_head(begin_with, self.kind)
        self.ids = self._draft_ids(train) if earlier is None else ids_of(earlier, self.target)
        self.head = RECIPES[kind](self.target, self.ids, own, self.checkpoint)
        self._begun_tokens = 0
        if earlier is not None:
            take_weights(self.head, earlier)
            self._begun_tokens = tokens_of(earlier)
        self.head.module.to(self.target.device)
        self.report.weight_bytes, self.report.trained_bytes = self.head.weight_bytes()
        self._best, self._stale, self._due = 0.0, 0, 0.0
        self._seen, self._rate = (0.0, 0), 0.0

    def run(self) -> TrainingReport:
        """Train until the budget or the patience is spent, and write the best drafter.

        A resumed run may have spent them already.

        Raises:
            TrainingError: if the loss is not a number, the state is of another recipe, or another run
                trains in the directory.
        """
        with self.locked():
            return self._run(self.out / WORK)

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

    def _run(self, work: Path) -> TrainingReport:
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

    def step(self, progress: Spent, fraction: float) -> list[ExampleBatch]:
        """The micro-batches of the next step; see `loop.BatchSource`."""
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
            report.progress = Spent(**vars(progress))
            report.forget_measurements()
            self.measured.clear()
            if self.processes.first:
                self.write()
        self.remember()
        trainer.save()
        if self._on_validated is not None and self.processes.first:
            self._on_validated(report, trainer.last_loss, self._rate)

    def write(self, texts: Mapping[str, str] = MappingProxyType({})) -> Mapping[str, Any]:
        """Write the drafter's directory: config, weights, forerun.json, the card, and a plot at the end.

        Args:
            texts: further files by name.

        Returns:
            The content of forerun.json.

        Raises:
            CheckpointError: if it cannot be written; the earlier files then stay.
        """
        recipe, report = self._recipe_facts(), self.report
        if isinstance(self.settings, HeadSettings):
            # The number in use differs from the setting if the target has fewer tokens, or if training
            # began with another head.
            recipe["settings"]["draft_vocab_size"] = len(self.ids)
        if self._begun_tokens:
            recipe["begun_with_tokens"] = self._begun_tokens
        content = {
            "format_version": 1,
            "target": self._target_facts(),
            "hidden_layers": list(self.head.hidden_layers),
            "recipe": recipe,
            "report": report.as_dict(),
            **self.measured,
        }
        text = json.dumps(content, indent=2) + "\n"
        own: dict[str, Any] = json.loads(text)
        files: dict[str, str | bytes] = {**self.head.files, **texts}
        files |= {OWN: text, CARD: card_of(self.kind, own)}
        if report.curve_by_category:
            title = f"{self.kind} for {self.checkpoint.name}: acceptance length on held-out text"
            files[PICTURE] = draw(report.curve_by_category, title)
        write_head(self.out, self.head.config, self.head.stored(), files)
        # Otherwise these files belong to earlier weights.
        kept = {PICTURE: report.curve_by_category, CERTIFICATE: "proofs" in own}
        for name in (name for name, there in kept.items() if not there):
            (self.out / name).unlink(missing_ok=True)
        return own

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
            batches.append(ExampleBatch.of(held[-count:]))
            held = held[:-count]
        table = self.head.objective.evaluate(batches, ranks)
        module.train()
        return table

    def _load_target(self) -> CausalLM:
        """Load the target on the backend that runs training texts fastest."""
        return self.checkpoint.load(self.checkpoint.run_config(Placement("bf16", "auto", "torch")))

    def _draft_ids(self, train: Sequence[Example]) -> Tensor:
        vocab_size = self.target.vocab_size
        if not isinstance(self.settings, HeadSettings):
            return torch.arange(vocab_size)
        answers = torch.tensor([token for c in train for token in c.answer_ids])
        counts = torch.bincount(answers, minlength=vocab_size)
        return frequent_ids(counts, self.settings.draft_vocab_size, self.checkpoint.eos_token_ids)

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
        return {"method": self.kind, "settings": asdict(self.settings), "head": asdict(self.own)}

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
        if path.exists() and _read_object(path) != facts:
            raise TrainingError(
                f"{path.parent} holds a training by other settings; give another directory, or delete "
                "that folder to start again."
            )
        if self.processes.first:
            _write_object(path, facts)

    def remember(self) -> None:
        """Save the validations and measurements for a run that resumes."""
        if self.processes.first:
            content = {**asdict(self.report), "best": self._best, "measured": self.measured}
            _write_object(self.out / WORK / "curve.json", content)

    def _resume(self, path: Path, progress: Spent) -> None:
        """Load the validations of an earlier run, up to the step of its state."""
        if not progress.steps and self.processes.first:
            path.unlink(missing_ok=True)
        if not progress.steps or not path.exists():
            return
        content = _read_object(path)
        try:
            self._best = float(content["best"])
            points = [(float(m), int(t), float(n)) for m, t, n in content["curve"]]
            for name in ("lengths", "positions", "untrained", *_MEASURED):
                setattr(self.report, name, content[name])
            self.measured = dict(content["measured"])
            self.report.progress = Spent(**content["progress"])
        except (KeyError, TypeError, ValueError) as error:
            raise _broken(path) from error
        self.report.curve = [point for point in points if point[1] <= progress.tokens]
        lengths = [length for _, _, length in self.report.curve]
        if lengths:
            self._stale = len(lengths) - 1 - lengths.index(max(lengths))


def _read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of an earlier run.

    Raises:
        TrainingError: for a broken file.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _broken(path) from error
    if not isinstance(content, dict):
        raise _broken(path)
    return content


def _broken(path: Path) -> TrainingError:
    """The error for a broken file of an earlier run."""
    return TrainingError(f"{path} is corrupt; delete {path.parent} to start again.")


def _write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file that a later run continues from.

    Raises:
        TrainingError: if it cannot be written; the earlier file then stays.
    """
    try:
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(content), "utf-8")
    except OSError as error:
        raise TrainingError(
            f"{path} cannot be written ({error}); give another directory."
        ) from error
