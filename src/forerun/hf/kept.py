"""The engine of a model of transformers, kept from call to call."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from forerun.engine.engine import Engine
from forerun.engine.load import DEFAULT_CONTEXT, load
from forerun.models.in_memory import LoadedModel

_NAME = "_forerun"


@dataclass(eq=False)
class Kept:
    """A model's engine, stored as an attribute of the model so that both are freed together."""

    model: Any = None
    fingerprint: Any = None
    asked: tuple[Any, ...] = ()
    engine: Engine | None = None
    checkpoint: LoadedModel | None = None

    def __post_init__(self) -> None:
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the model, or a model read from a file, starts without an engine.
        return Kept, ()

    def engine_for(self, rows: int, length: int) -> Engine:
        """An engine for `rows` rows of `length` tokens: the kept one if it is large enough."""
        if self.checkpoint is None:
            self.checkpoint = LoadedModel.of(self.model)
        longest = self.checkpoint.summary.max_context
        engine, needed = self.engine, min(length, longest)
        if engine is None or engine.max_batch_size < rows or engine.max_context < needed:
            speculative, drafter, policy = self.asked
            self.engine = None
            engine = self.engine = load(
                self.checkpoint,
                speculative,
                drafter=drafter,
                policy=policy,
                max_batch_size=rows,
                max_context=min(max(length, DEFAULT_CONTEXT), longest),
            )
        return engine


def kept_with(model: Any, asked: tuple[Any, ...]) -> Kept:
    """The `Kept` of a model, made anew if the model's weights or the arguments have changed."""
    kept: Kept | None = vars(model).get(_NAME)
    fingerprint = _fingerprint(model)
    if kept is None or kept.fingerprint != fingerprint or kept.asked != asked:
        kept = Kept(model, fingerprint, asked)
        vars(model)[_NAME] = kept
    return kept


def _fingerprint(model: Any) -> list[tuple[int, int]]:
    """Address and version of every weight and buffer, to notice changes."""
    tensors = [*model.parameters(), *model.buffers()]
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
