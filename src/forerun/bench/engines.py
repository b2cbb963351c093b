"""One target, loaded once, and an engine for each setting."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from forerun.bench.contestants import Drafting
from forerun.bench.prompts import Preparation, Prepared
from forerun.bench.settings import Setting
from forerun.contracts import Policy
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.files import CACHE_VARIABLE
from forerun.measure.questions import Question
from forerun.models import Checkpoint
from forerun.params import SamplingParams
from forerun.progress import report

# Caches are allocated in steps of this many tokens.
_STEP = 64


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
        """The prompts of questions; `options` are those of `Preparation`."""
        engine = self._engine(False, self.max_context, 1)
        return Preparation(engine, params, **options).prepare(questions)

    def engine(
        self,
        speculative: Any,
        prepared: Prepared,
        params: SamplingParams,
        batch: int,
        policy: Policy | None = None,
    ) -> Engine:
        """An engine with room for the prompts and their outputs; `speculative` as `forerun.load` takes it."""
        return self._engine(speculative, self._context(prepared, params), batch, policy)

    @contextmanager
    def drafting(
        self, settings: Sequence[Setting], prepared: Prepared, params: SamplingParams, batch: int
    ) -> Iterator[list[Drafting]]:
        """A contestant for each setting. At the end the engines are closed: what their policies have learned
        stays on disk, but for cold ones, which find nothing there and leave nothing.

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

    def _context(self, prepared: Prepared, params: SamplingParams) -> int:
        longest = max(len(prompt.token_ids) for prompt in prepared.prompts)
        needed = -(-(longest + (params.max_tokens or 1)) // _STEP) * _STEP
        return min(needed, self.max_context or self.checkpoint.summary.max_context)

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
    """Policies of engines that are made within keep what they learn in a folder of their own."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[CACHE_VARIABLE]
        if before is not None:
            os.environ[CACHE_VARIABLE] = before
