"""Contestants beside plain decoding: an engine with a setting, or another engine's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forerun.bench.peers.process import RemoteEngine
from forerun.bench.rows import Side, side_of
from forerun.bench.runs import EncodedPrompt, Timed, predicted, run_drafting
from forerun.bench.settings import DEFAULT, Setting
from forerun.core import Stats
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.measure.attribution import first_difference
from forerun.measure.paired import deterministic, warming_up
from forerun.models import Checkpoint
from forerun.params import SamplingParams
from forerun.policies.decisions import in_words
from forerun.progress import report

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Measured:
    """One run of a contestant.

    Args:
        side: what it took.
        stats: its counters, where it has some.
        identical: number of outputs equal to plain decoding's; None where they need not be.
        differences: causes of the other outputs, as far as they are known.
    """

    side: Side
    stats: Stats | None = None
    identical: int | None = None
    differences: tuple[str, ...] = ()


@dataclass
class Drafting:
    """An engine that drafts as a setting says."""

    setting: Setting
    engine: Engine

    @property
    def name(self) -> str:
        return self.setting.name

    def takes(self, params: SamplingParams, batch: int) -> bool:
        """True if it can run `batch` requests at once with these sampling parameters."""
        return batch <= self.engine.max_batch_size

    def warm_up(self, prompts: Sequence[EncodedPrompt], params: SamplingParams) -> None:
        """Run a few tokens, which teach its policy nothing."""
        with warming_up(self.engine):
            run_drafting(self.engine, prompts, replace(params, max_tokens=WARM_UP_TOKENS))

    def measure(
        self, prompts: Sequence[EncodedPrompt], params: SamplingParams, plain: Timed
    ) -> Measured:
        """Run prompts at once; `plain` is plain decoding of the same."""
        if self.setting.cold and self.engine.policy is not None:
            self.engine.policy.forget()
        drafter = self.engine.drafter
        if drafter is not None and drafter.reads_predictions:
            prompts = [
                prompt if prompt.prediction else predicted(self.engine, prompt, params)
                for prompt in prompts
            ]
        run = run_drafting(self.engine, prompts, params)
        measured = Measured(side_of(run), run.stats)
        if not deterministic(params, self.engine.config):
            return measured
        pairs = zip(prompts, run.completions, plain.completions, strict=True)
        differences = [
            first_difference(
                self.engine.target,
                self.engine.tokenizer,
                prompt.token_ids,
                ours.token_ids,
                theirs.token_ids,
                params,
            )
            for prompt, ours, theirs in pairs
        ]
        causes = tuple(d.explanation for d in differences if d is not None)
        return replace(measured, identical=len(prompts) - len(causes), differences=causes)

    @property
    def notes(self) -> list[str]:
        """Decisions of its policy where it chose for the user, and drafters that it gave up.

        A cold one has forgotten them.
        """
        policy = self.engine.policy
        if policy is None or self.setting.cold:
            return []
        notes = [f"{self.name}: {sentence}" for sentence in policy.given_up()]
        if self.setting.method == DEFAULT and (report := policy.report()):
            notes.insert(0, f"{self.name} decided: {in_words(report)}")
        return notes


@dataclass
class Elsewhere:
    """A peer, plain or with drafts of some length: greedy, one request at a time.

    It emits as many tokens as plain decoding here did, whatever they are.
    """

    name: str
    peer: RemoteEngine
    length: int
    notes: Sequence[str] = ()

    def takes(self, params: SamplingParams, batch: int) -> bool:
        return batch == 1 and params.greedy

    def warm_up(self, prompts: Sequence[EncodedPrompt], params: SamplingParams) -> None:
        self._generate(prompts[0], WARM_UP_TOKENS)

    def measure(
        self, prompts: Sequence[EncodedPrompt], params: SamplingParams, plain: Timed
    ) -> Measured:
        [completion] = plain.completions
        tokens, seconds = self._generate(prompts[0], len(completion.token_ids))
        side = Side(len(tokens), seconds, None, (), {})
        return Measured(side, identical=int(tokens == list(completion.token_ids)))

    def _generate(self, prompt: EncodedPrompt, count: int) -> tuple[list[int], float]:
        answer = self.peer.call(
            "generate",
            prompt_ids=list(prompt.token_ids),
            num_tokens=count,
            num_speculative_tokens=self.length,
        )
        return answer[0], answer[1]


Contestant = Drafting | Elsewhere
"""A way to decode that is measured; its name is unique among them."""

# Tokens to draft a round that other engines are measured with; 0 decodes plainly.
LENGTHS = (0, 2, 4, 8)


@dataclass
class Opponents:
    """Other engines that take part.

    Args:
        contestants: each engine plain, and with drafts of each length.
        facts: of each contestant: engine, version, settings.
        notes: which engines are missing, and why.
    """

    contestants: list[Elsewhere] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@contextmanager
def invited(names: Sequence[str], load: Callable[[str], RemoteEngine]) -> Iterator[Opponents]:
    """Engines that are loaded, each in a process of its own; they end with the block.

    Args:
        names: names of peers.
        load: from a name to its engine.
    """
    opponents = Opponents()
    with ExitStack() as stack:
        for number, name in enumerate(names):
            try:
                engine = stack.enter_context(load(name))
                described: dict[str, Any] = engine.call("describe")
            except ConfigError as error:
                opponents.notes.append(f"without {name}: {str(error).rstrip('.')}")
                continue
            drafts = "draft model" if described["draft"] else "lookup"
            for length in LENGTHS:
                label = f"{name}, {drafts} of {length}" if length else f"{name}, plain"
                opponents.contestants.append(Elsewhere(label, engine, length))
                opponents.facts[label] = described
            report("loading other engines", number + 1, len(names))
        yield opponents


def files_of(checkpoint: Checkpoint) -> Path:
    """The GGUF file or the folder of a model."""
    location = checkpoint.with_weights().location
    return location.file or location.directory
