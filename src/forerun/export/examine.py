"""Examination of a head with its target: the checks, and the replay if the head can be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forerun.contracts import CausalLM
from forerun.engine.chat import ChatTemplate, encode_text
from forerun.errors import CheckpointError, ConfigError, UnsupportedModelError
from forerun.export.check import check_head
from forerun.export.export import without_copies
from forerun.export.findings import EVERY, Finding, Severity, defects, error, note
from forerun.export.head import MEDUSA, PublishedHead, read_head
from forerun.export.profiles import Verifier
from forerun.export.replay import TOKENS, Replay, go_on, layers_read, observe, replay
from forerun.export.target import Target
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

    head: PublishedHead
    target: Target
    findings: Sequence[Finding]
    replays: Sequence[Replay] = ()
    skipped: str = ""

    @property
    def clean(self) -> bool:
        """True if every engine loads the head and drafts as it was trained."""
        return not defects(self.findings) and all(result.sound for result in self.replays)


@dataclass(frozen=True, eq=False)
class Pair:
    """A head with the checkpoint of its target."""

    head: PublishedHead
    checkpoint: Checkpoint
    target: Target

    @classmethod
    def open(cls, head: str, model: str | None, revision: str | None = None) -> Pair:
        """Read a head, and the config of its target.

        Args:
            model: the target; None for the target named in forerun.json.

        Raises:
            ConfigError: if neither names a target.
            CheckpointError: for missing or broken files of the head or the target.
        """
        published = read_head(head)
        name = model or target_named(published.record)
        if name is None:
            raise ConfigError(f"{head} does not say for which target it is; name it with --model.")
        checkpoint = Checkpoint.open(name, revision)
        return cls(published, checkpoint, Target.of(checkpoint))

    def load(self, placement: Placement) -> CausalLM:
        """Load the target."""
        return self.checkpoint.load(self.checkpoint.run_config(placement))

    def verifier(self, model: CausalLM, name: str | None) -> Verifier:
        """The target in the form that exports need.

        Args:
            name: id on the hub; None for the id or directory that the target was loaded from.
        """
        location = self.checkpoint.location
        if name is None and location.file is None:
            name = location.hub_id or str(location.directory)
        architectures = getattr(self.checkpoint.config, "architectures", None) or ()
        return Verifier(name, tuple(architectures), model)


def target_named(record: Any) -> str | None:
    """Name of the target in forerun.json; None if there is none."""
    named = record.get("target")
    if isinstance(named, dict):
        named = named.get("name")
    return named if isinstance(named, str) and named else None


def examine(pair: Pair, engines: Sequence[str], model: CausalLM | None) -> Examination:
    """Check a head, and run it as each engine reads it.

    Args:
        engines: engines to check the head for.
        model: the target; None to run nothing.

    Raises:
        UnsupportedModelError: for a head of an unknown kind.
        CheckpointError: for a target that cannot be run.
    """
    head, target, copies = pair.head, pair.target, list[Finding]()
    if model is not None and head.kind != MEDUSA and model.hidden_size == target.hidden_size:
        head, copied = without_copies(head, model)
        copies = [_copy_note(pair.head, name) for name in copied]
    findings = [*check_head(head, target, engines), *copies]
    skipped = _unrunnable(head, findings) if model is not None else "it was not asked for"
    if model is None or skipped:
        return Examination(head, target, findings, (), skipped)
    layers = layers_read(head, target, engines)
    beyond = [layer for layer in layers if not 0 <= layer <= target.num_layers]
    if beyond:
        told = f"the target has no hidden layer {beyond[0]}"
        return Examination(head, target, findings, (), told)
    prompt = first_tokens(pair.checkpoint)[-(target.max_context // 2) :]
    length = min(len(prompt) + TOKENS, target.max_context)
    text = observe(model, go_on(model, prompt, length), sorted(layers), len(prompt))
    try:
        replays = replay(head, target, text, engines, findings)
    except UnsupportedModelError as reason:
        return Examination(head, target, findings, (), str(reason).removesuffix("."))
    except CheckpointError as failure:
        problem = str(failure).removesuffix(".")
        found = error(EVERY, "sizes", problem, "correct config.json")
        return Examination(head, target, [found, *findings], (), problem)
    return Examination(head, target, findings, replays)


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


def _unrunnable(head: PublishedHead, findings: Sequence[Finding]) -> str:
    """Reason why a head cannot be run even as it was trained; empty if it can."""
    if head.kind == MEDUSA:
        return "no engine's forward of Medusa is kept"
    if head.config.get("markov_head_type", "vanilla") != "vanilla":
        return "its Markov head is not run here"
    for finding in findings:
        if finding.severity is Severity.ERROR and finding.engine == EVERY:
            return finding.problem
        if finding.trap in ("missing_tensor", "markov_head_type"):
            return finding.problem
    return ""


def _copy_note(head: PublishedHead, name: str) -> Finding:
    size = head.bytes_of([name])
    problem = f"{name} is a copy of the target's, {size} bytes"
    return note(EVERY, "copy", problem, "leave it out: every engine takes the target's then")
