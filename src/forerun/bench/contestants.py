"""Contestants beside plain decoding: an engine for each setting, or another engine's process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forerun.bench.peers.process import RemoteEngine
from forerun.bench.runs import (
    EncodedPrompt,
    Prepared,
    Side,
    Timed,
    predicted,
    prepare,
    run_drafting,
    side_of,
)
from forerun.bench.settings import DEFAULT, Setting
from forerun.contracts import Policy
from forerun.core import Stats
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.options import CONTEXT_STEP
from forerun.errors import ConfigError
from forerun.files import CACHE_VARIABLE
from forerun.measure.attribution import first_difference
from forerun.measure.paired import deterministic, warming_up
from forerun.measure.questions import Question
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
class Workshop:
    """Maker of engines; within `forerun.models.checkpoint.loading_once` all of them share one target.

    Args:
        checkpoint: of the target.
        placement: dtype, device, backend and kv_dtype, as `forerun.load` takes them.
        max_context: of prompt and output at most; None for the usual one.
    """

    checkpoint: Checkpoint
    placement: dict[str, Any]
    max_context: int | None = None

    def prepare(
        self, questions: Sequence[Question], params: SamplingParams, **options: Any
    ) -> Prepared:
        """Prompts of questions; `options` go to `prepare`."""
        return prepare(self._engine(False, self.max_context, 1), questions, params, **options)

    def engine(
        self,
        speculative: Any,
        prepared: Prepared,
        params: SamplingParams,
        batch: int,
        policy: Policy | None = None,
    ) -> Engine:
        """An engine with room for the prompts and their outputs; `speculative` as `forerun.load` takes it."""
        longest = max(len(prompt.token_ids) for prompt in prepared.prompts)
        needed = -(-(longest + (params.max_tokens or 1)) // CONTEXT_STEP) * CONTEXT_STEP
        most = self.max_context or self.checkpoint.summary.max_context
        return self._engine(speculative, min(needed, most), batch, policy)

    @contextmanager
    def drafting(
        self, settings: Sequence[Setting], prepared: Prepared, params: SamplingParams, batch: int
    ) -> Iterator[list[Drafting]]:
        """Engines of the settings as contestants, closed at the end. Their policies keep on disk what
        they have learned; cold ones use an empty folder of their own.

        Raises:
            ForerunError: for a setting that cannot be run.
        """
        made = []
        with ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="forerun-bench-"))
            for number, setting in enumerate(settings):
                with _learning_in(folder) if setting.cold else nullcontext():
                    engine = self.engine(setting.config, prepared, params, batch)
                made.append(Drafting(setting, stack.enter_context(engine)))
                report("loading drafters", number + 1, len(settings))
            yield made

    def _engine(
        self, speculative: Any, context: int | None, batch: int, policy: Policy | None = None
    ) -> Engine:
        return load(
            self.checkpoint,
            speculative,
            policy=policy,
            max_context=context,
            max_batch_size=batch,
            prefix_reuse=False,
            **self.placement,
        )


@contextmanager
def _learning_in(folder: str) -> Iterator[None]:
    """Context in which the policies of new engines keep what they learn in another folder."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[CACHE_VARIABLE]
        os.environ |= {} if before is None else {CACHE_VARIABLE: before}


@dataclass
class Elsewhere:
    """A peer, plain or with drafts of some length: greedy, one request at a time.

    It emits as many tokens as plain decoding here did, whatever they are.

    Args:
        facts: its engine, version and settings.
    """

    name: str
    peer: RemoteEngine
    length: int
    facts: Mapping[str, Any] = field(default_factory=dict)
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


@contextmanager
def invited(
    names: Sequence[str], load: Callable[[str], RemoteEngine]
) -> Iterator[tuple[list[Elsewhere], list[str]]]:
    """Other engines, plain and with drafts of each length, and notes on those that are missing.

    Each runs in a process of its own, which ends with the block.

    Args:
        names: names of peers.
        load: from a name to its engine.
    """
    contestants, notes = list[Elsewhere](), list[str]()
    with ExitStack() as stack:
        for number, name in enumerate(names):
            try:
                engine = stack.enter_context(load(name))
                described: dict[str, Any] = engine.call("describe")
            except ConfigError as error:
                notes.append(f"without {name}: {str(error).rstrip('.')}")
                continue
            drafts = "draft model" if described["draft"] else "lookup"
            for length in LENGTHS:
                label = f"{name}, {drafts} of {length}" if length else f"{name}, plain"
                contestants.append(Elsewhere(label, engine, length, described))
            report("loading other engines", number + 1, len(names))
        yield contestants, notes


def files_of(checkpoint: Checkpoint) -> Path:
    """The GGUF file or the folder of a model."""
    return checkpoint.with_weights().location.path
