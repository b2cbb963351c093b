"""`forerun check`: finds all that is wrong with a head, for forerun and other engines, and replays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forerun.contracts import CausalLM
from forerun.engine.chat import ChatTemplate, encode_text
from forerun.errors import CheckpointError, ConfigError, UnsupportedModelError
from forerun.export.head import (
    EMBEDDING,
    EVERY,
    Finding,
    PublishedHead,
    Severity,
    Target,
    defects,
    error,
    note,
)
from forerun.export.replay import TOKENS, Replay, go_on, layers_read, observe, run_readings
from forerun.export.rules import check_head
from forerun.models import Checkpoint, Placement

QUESTION = "Why is the sky blue, and why are sunsets red?"


@dataclass(frozen=True)
class Examination:
    """Result of examining a head.

    Attributes:
        findings: findings, the worst first.
        replays: one replay for each engine; empty if the head was not run.
        skipped: reason why the head was not run; empty if it was.
    """

    findings: Sequence[Finding]
    replays: Sequence[Replay] = ()
    skipped: str = ""

    @property
    def clean(self) -> bool:
        """True if every engine loads the head and drafts as it was trained."""
        return not defects(self.findings) and all(replay.sound for replay in self.replays)


@dataclass(frozen=True, eq=False)
class HeadAndTarget:
    """A head with the checkpoint of its target."""

    head: PublishedHead
    checkpoint: Checkpoint
    target: Target

    @classmethod
    def open(cls, head: str, model: str | None, revision: str | None = None) -> HeadAndTarget:
        """Read a head, and the config of its target.

        Args:
            head: a directory or a hub id.
            model: the target; None for the target named in forerun.json.
            revision: branch, tag or commit of the target on the hub.

        Raises:
            ConfigError: if neither names a target.
            CheckpointError: for missing or broken files of the head or the target.
        """
        published = PublishedHead.open(head)
        name = model or _target_named(published.record)
        if name is None:
            raise ConfigError(f"{head} does not say for which target it is; name it with --model.")
        checkpoint = Checkpoint.open(name, revision)
        return cls(published, checkpoint, Target.of(checkpoint))

    def load(self, placement: Placement) -> CausalLM:
        """Load the target that the head drafts for."""
        return self.checkpoint.load(self.checkpoint.run_config(placement))

    def examine(self, engines: Sequence[str], model: CausalLM | None) -> Examination:
        """Check the head, and run it as each engine reads it.

        Args:
            engines: engines to check the head for.
            model: the target; None to run nothing.

        Raises:
            UnsupportedModelError: for a head of another kind.
            CheckpointError: for a target that cannot be run.
        """
        head = self.head if model is None else self.head.without_copy(model)
        findings = check_head(head, self.target, engines)
        if head is not self.head:
            size = self.head.weights[EMBEDDING].nbytes
            problem = f"{EMBEDDING} is a copy of the target's, {size} bytes"
            remedy = "leave it out: every engine takes the target's then"
            findings += note(EVERY, "copy", problem, remedy)
        if model is None:
            return Examination(findings, skipped="it was not asked for")
        if unrunnable := _unrunnable(findings):
            return Examination(findings, skipped=unrunnable)
        try:
            return Examination(findings, self._replays(head, engines, model, findings))
        except UnsupportedModelError as failure:
            return Examination(findings, skipped=str(failure).removesuffix("."))
        except CheckpointError as failure:
            problem = str(failure).removesuffix(".")
            with_sizes = [*error(EVERY, "sizes", problem, "correct config.json"), *findings]
            return Examination(with_sizes, skipped=problem)

    def _replays(
        self,
        head: PublishedHead,
        engines: Sequence[str],
        model: CausalLM,
        findings: Sequence[Finding],
    ) -> list[Replay]:
        """Run the head on a question and the target's answer, as each engine reads it."""
        target, layers = self.target, layers_read(head, self.target, engines)
        beyond = [layer for layer in layers if not 0 <= layer <= target.num_layers]
        if beyond:
            raise UnsupportedModelError(f"the target has no hidden layer {beyond[0]}.")
        prompt = first_tokens(self.checkpoint)[-(target.max_context // 2) :]
        length = min(len(prompt) + TOKENS, target.max_context)
        text = observe(model, go_on(model, prompt, length), sorted(layers), len(prompt))
        return run_readings(head, target, text, engines, findings)


def _target_named(record: Mapping[str, Any]) -> str | None:
    """Name of the target in forerun.json; None if there is none."""
    target = record.get("target")
    name = target.get("name") if isinstance(target, dict) else target
    return name if isinstance(name, str) and name else None


def first_tokens(checkpoint: Checkpoint) -> list[int]:
    """Token ids that begin the replayed text: a question, or random tokens without a tokenizer."""
    try:
        tokenizer = checkpoint.tokenizer
        template = ChatTemplate.of(tokenizer)
    except CheckpointError:
        source = torch.Generator().manual_seed(0)
        ids = torch.randint(checkpoint.summary.vocab_size, (TOKENS // 2,), generator=source)
        return [int(token) for token in ids]
    if template is None:
        return encode_text(tokenizer, QUESTION)
    return template.encode([{"role": "user", "content": QUESTION}])


def _unrunnable(findings: Sequence[Finding]) -> str:
    """Reason why a head cannot be run even as it was trained; empty if it can."""
    for finding in findings:
        everywhere = finding.severity is Severity.ERROR and finding.engine == EVERY
        if everywhere or finding.trap in ("config", "missing_tensor"):
            return finding.problem
    return ""
