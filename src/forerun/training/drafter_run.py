"""A training run of a drafter: reads conversations, trains, validates, measures, and writes the drafter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.engine.chat import ChatTemplate
from forerun.errors import TrainingError
from forerun.files import lock, printable, reason
from forerun.heads.files import BY_RANK, CARD, OWN, open_head, write_head
from forerun.models.checkpoint import Checkpoint
from forerun.placement import Placement
from forerun.progress import say
from forerun.training.conversations import (
    BatchStream,
    Example,
    ExampleBatch,
    held_out,
    read_conversations,
)
from forerun.training.draft import draft_model
from forerun.training.eagle3 import eagle3
from forerun.training.loop import Spent, Trainer, TrainingSettings
from forerun.training.medusa import medusa
from forerun.training.objective import AcceptanceTable
from forerun.training.result import TrainingReport, Validation, card_of
from forerun.training.settings import DrafterSettings, HeadSettings
from forerun.training.untrained import (
    Untrained,
    frequent_ids,
    ids_of,
    take_weights,
)

RECIPES: Mapping[str, Callable[[CausalLM, Tensor, Any, Checkpoint], Untrained]] = {
    "draft": draft_model,
    "eagle3": eagle3,
    "medusa": medusa,
}
"""Function that makes an untrained drafter of each kind."""
METHODS = {"draft": "draft_model"}
"""Names of methods that are not the kind of their drafter."""
_UNLIMITED = 10**15
WORK = "training"
"""Folder in a drafter's directory with the state that a run resumes from."""


class DrafterRun:
    """One training of a head or a draft model, from the files of conversations to its directory.

    Args:
        kind: kind of the drafter, a key of `RECIPES`.
        own: settings of that kind of drafter.
        settings: settings that all kinds share.
        model: name or path of the target.
        data: files written by `forerun train data`.
        out: directory of the drafter; a run continues from the folder `training` in it.
        begin_with: directory of a drafter of this kind, whose weights training begins with.

    Attributes:
        kind: name of the method that drafts with the drafter.
        report: figures of the training.

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
        begin_with: str | None = None,
    ) -> None:
        self.checkpoint = Checkpoint.open(model)
        self.settings, self.own, self.out = settings, own, out
        self.kind = METHODS.get(kind, kind)
        summary = self.checkpoint.summary
        longest = min(settings.max_length, summary.max_context)
        examples, left_out = read_conversations(data, summary.vocab_size, longest)
        train, self.held = held_out(examples, settings.seed)
        self.stream = BatchStream(train, settings.micro_batch_tokens, settings.seed)
        torch.manual_seed(settings.seed)
        self.target = self._load_target()
        earlier = None if begin_with is None else open_head(begin_with, self.kind)
        self.ids = self._draft_ids(train) if earlier is None else ids_of(earlier, self.target)
        self.head = RECIPES[kind](self.target, self.ids, own, self.checkpoint)
        if earlier is not None:
            take_weights(self.head, earlier)
        self.head.module.to(self.target.device)
        counts = {"trained on": len(train), "held out": len(self.held), **left_out}
        self.report, self._due = TrainingReport(counts, *self.head.weight_bytes()), 0.0

    def run(self) -> TrainingReport:
        """Train until the budget or the patience is spent, and write the best drafter.

        A resumed run may have spent them already. Nobody else trains in the directory meanwhile.

        Raises:
            TrainingError: if the loss is not a number, the state is of another recipe, or another run
                trains in the directory.
            CheckpointError: if the drafter cannot be written; the earlier files then stay.
        """
        work = self.out / WORK
        with _locked(work):
            self._train(work / "state.pt")
        return self.report

    def _train(self, state: Path) -> None:
        trainer = Trainer(
            self.head.module,
            self.head.objective,
            self._training_settings(),
            state,
            recipe=self._fixed_recipe(),
        )
        self.report.resume(trainer.notes)
        self._announce()
        if not self.report.untrained:
            self.report.untrained = self.evaluate().lengths
        self._due = trainer.progress.seconds + 60 * self.settings.validate_minutes
        curve = self.report.curve
        if not curve or self.report.stale < self.settings.patience:
            for _ in trainer.budget():
                trainer.step(self._batches(trainer.progress.steps))
                if self._ends(trainer):
                    break
        if not curve or curve[-1].progress.tokens != trainer.progress.tokens:
            self._judge(trainer)

    def _announce(self) -> None:
        """Say before a training what it does and how long it takes."""
        settings, count = self.settings, self.report.conversations["trained on"]
        tokens = "" if settings.tokens is None else f", or {settings.tokens} tokens"
        say(
            f"training on {count} conversations for {settings.minutes:g} minutes at most{tokens}; "
            f"the best weights so far are in {self.out}"
        )

    def _batches(self, step: int) -> list[ExampleBatch]:
        """The micro-batches of a step."""
        count = self.settings.micro_batches
        return [self.stream.batch(step * count + i) for i in range(count)]

    def _ends(self, trainer: Trainer) -> bool:
        """Validate when it is time; True if the patience is spent."""
        if trainer.progress.seconds < self._due:
            return False
        self._due = trainer.progress.seconds + 60 * self.settings.validate_minutes
        self._judge(trainer)
        return self.report.stale >= self.settings.patience

    def _judge(self, trainer: Trainer) -> None:
        """Validate, and write the drafter if it is the best so far."""
        table, progress = self.evaluate(), Spent(**vars(trainer.progress))
        figures = (table.lengths, table.positions, table.by_rank)
        point = Validation(progress, trainer.last_loss, *figures)
        self.report.curve.append(point)
        if self.report.best is point:
            self.write()
        trainer.notes = self.report.notes()
        trainer.save()
        say(
            f"{progress.seconds / 60:.1f} min, {progress.tokens} tokens "
            f"({self.report.tokens_per_second:.0f}/s), loss {point.loss:.3f}, acceptance length "
            f"{point.mean_length:.3f} (best {self.report.best.mean_length:.3f})"
        )

    def content(self) -> dict[str, Any]:
        """The content of forerun.json."""
        recipe = self._recipe_facts()
        if isinstance(self.settings, HeadSettings):
            # The number in use differs from the setting if the target has fewer tokens, or if training
            # began with another head.
            recipe["settings"]["draft_vocab_size"] = len(self.ids)
        content = {
            "format_version": 1,
            "target": self._target_facts(),
            "hidden_layers": self.head.objective.teacher.hidden_layers,
            "recipe": recipe,
            "report": self.report.as_dict(),
            BY_RANK: self.report.best.by_rank or None,
        }
        # As it is read: tuples become lists.
        return dict(json.loads(json.dumps(content)))

    def write(self) -> None:
        """Write the drafter's directory: config, weights, forerun.json, and the card.

        Raises:
            CheckpointError: if it cannot be written; the earlier files then stay.
        """
        content = self.content()
        files: dict[str, str | bytes] = {
            **self.head.files,
            OWN: json.dumps(content, indent=2) + "\n",
            CARD: card_of(self.kind, content),
        }
        write_head(self.out, self.head.config, self.head.stored(), files)

    def evaluate(self) -> AcceptanceTable:
        """Measure acceptance on the held-out conversations."""
        module = self.head.module
        module.eval()
        held = sorted(self.held, key=len)
        batches = []
        while held:
            count = max(1, self.settings.micro_batch_tokens // len(held[-1]))
            batches.append(ExampleBatch.of(held[-count:]))
            held = held[:-count]
        table = self.head.objective.evaluate(batches)
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
        settings = self.settings
        budget = (settings.tokens or _UNLIMITED, 60 * settings.minutes)
        rates = (settings.matrix_learning_rate, settings.learning_rate)
        return TrainingSettings(*budget, *rates, weight_decay=0.0, decay=0.3)

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

    def _fixed_recipe(self) -> dict[str, Any]:
        """The settings by which a state may go on: all but the budget."""
        facts = json.loads(json.dumps({**self._recipe_facts(), "target": self._target_facts()}))
        for name in ("minutes", "tokens", "validate_minutes", "patience"):
            facts["settings"].pop(name, None)
        return dict(facts)


def _locked(work: Path) -> IO[str]:
    """The lock of a run's directory, which is created if it is missing.

    Raises:
        TrainingError: if it cannot be created, or another run trains in it.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = (work / "lock").open("w", encoding="utf-8")
    except OSError as error:
        raise TrainingError(
            f"{printable(work.parent)} can be no directory of a drafter: {reason(error)}; give "
            "another --output."
        ) from error
    if not lock(file):
        file.close()
        raise TrainingError(
            f"another run trains in {printable(work.parent)}; wait for its end, or give another --output."
        )
    return file
