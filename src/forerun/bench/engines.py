"""One target, loaded once, and an engine for each setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.bench.contestants import Drafting
from forerun.bench.prompts import Preparation, Prepared
from forerun.bench.settings import Setting
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.models import Checkpoint
from forerun.params import SamplingParams
from forerun.progress import report
from forerun.training.questions import Question

# Caches are allocated in steps of this many tokens.
_STEP = 64


@dataclass
class Workshop:
    """Where engines are made; within `forerun.models.once.loading_once` all of them share one target.

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

    def plain(self, prepared: Prepared, params: SamplingParams, batch: int) -> Engine:
        """An engine without a drafter."""
        return self._engine(False, self._context(prepared, params), batch)

    def drafting(
        self, settings: Sequence[Setting], prepared: Prepared, params: SamplingParams, batch: int
    ) -> list[Drafting]:
        """A contestant for each setting.

        Raises:
            ForerunError: for a setting that cannot be run.
        """
        made = []
        for number, setting in enumerate(settings):
            engine = self._engine(setting.config, self._context(prepared, params), batch)
            made.append(Drafting(setting, engine))
            report("loading drafters", number + 1, len(settings))
        return made

    def _context(self, prepared: Prepared, params: SamplingParams) -> int:
        longest = max(len(prompt.token_ids) for prompt in prepared.prompts)
        needed = -(-(longest + (params.max_tokens or 1)) // _STEP) * _STEP
        return min(needed, self.max_context or self.checkpoint.summary.max_context)

    def _engine(self, speculative: Any, context: int | None, batch: int) -> Engine:
        return load(
            self.checkpoint,
            speculative,
            max_context=context,
            max_batch_size=batch,
            prefix_reuse=False,
            **self.placement,
        )
