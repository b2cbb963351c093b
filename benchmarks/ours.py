"""forerun's own engine with the interface of a peer, and calls that only it has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.rounds import measure_rounds
from benchmarks.shapes import build
from forerun.bench.forwards import (
    Forwards,
    Machine,
    forward_bytes,
    multiply_adds,
    prefill_seconds,
    use_threads,
)
from forerun.core import Drawing
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.measure.paired import Run
from forerun.models.cpu import CpuModel
from forerun.models.run_config import draft_precision, with_kv_dtype
from forerun.params import SamplingParams

MAX_CONTEXT = 2048
LONGEST_FORWARD = 64
_IN_A_ROW = 15


class Ours:
    """A target on the kernels, with an optional draft model.

    Args:
        model: a directory, or a name of shapes.MODELS.
        precision: of the target.
        threads: to run on.
        draft: likewise a draft model, in the precision that `auto` means; None: plain decoding only.
        kv_dtype: of the target's cache.
    """

    def __init__(
        self,
        model: str,
        precision: str,
        threads: int,
        draft: str | None = None,
        kv_dtype: str = "auto",
    ) -> None:
        self.threads = use_threads(threads)
        self.model = with_kv_dtype(build(model, precision), kv_dtype)
        self._draft_name = draft
        self._timers: dict[int, Forwards] = {}
        self._engines: dict[int, Engine] = {}

    @cached_property
    def machine(self) -> Machine:
        """Created on first use: its stream takes memory."""
        return Machine()

    @cached_property
    def draft(self) -> CpuModel | None:
        """The draft model."""
        if self._draft_name is None:
            return None
        draft = build(self._draft_name, "int8")
        if draft_precision(draft.weight_bytes) == "int8":
            return draft
        return build(self._draft_name, "int4")

    def describe(self) -> dict[str, Any]:
        """The settings that a report states."""
        return {
            "name": "forerun",
            "precision": self.model.precision,
            "draft_precision": self.draft.precision if self.draft else None,
            "weight_bytes": self.model.weight_bytes,
            "threads": self.threads,
        }

    def forward_seconds(self, n: int, context: int) -> float:
        """Seconds of one forward of `n` tokens with all logits."""
        if context not in self._timers:
            self._timers[context] = Forwards(self.model, context, LONGEST_FORWARD)
        return self._timers[context].once(n)

    def share_of_bandwidth(self, context: int) -> dict[str, float]:
        """The rate of forwards of one token in a row, as decoding runs them (the first one after a pause
        wakes threads that sleep), and of reads of the machine's stream just before and after."""
        before = self.machine.read()
        seconds = median(self.forward_seconds(1, context) for _ in range(_IN_A_ROW))
        machine_rate = (before + self.machine.read()) / 2
        rate = forward_bytes(self.model, 1, context) / seconds
        return {"share": rate / machine_rate, "bytes_per_second": rate, "machine": machine_rate}

    def prefill_rate(self, tokens: int) -> dict[str, float | None]:
        """Tokens and multiply-adds per second of a prefill, and the instruction's peak just before."""
        peak = self.machine.multiply(self.model.precision)
        seconds = prefill_seconds(self.model, tokens)
        work = multiply_adds(self.model, tokens, 0, head=False)
        return {"tokens": tokens / seconds, "multiply_adds": work / seconds, "peak": peak}

    def rounds(self, drafted: int, context: int, count: int, sampled: bool) -> dict[str, float]:
        """Seconds of the forwards alone in rounds that draft: the target's and the draft's."""
        assert self.draft is not None
        drawing = Drawing.SAMPLED if sampled else Drawing.GREEDY
        return measure_rounds(self.model, self.draft, drafted, context, count, drawing)

    def generate(
        self,
        prompt_ids: Sequence[int],
        num_tokens: int,
        num_speculative_tokens: int = 0,
        temperature: float = 0.0,
    ) -> tuple[list[int], float, dict[str, Any]]:
        """Exactly `num_tokens` tokens, the seconds from the prompt to the last, and statistics."""
        engine = self._engine(num_speculative_tokens)
        params = SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True)
        stream = engine.stream if num_speculative_tokens else engine.stream_plain
        started = perf_counter()
        run = Run(stream(list(prompt_ids), params)).follow()
        seconds = perf_counter() - started
        return list(run.completion.token_ids), seconds, run.completion.stats.as_dict()

    def close(self) -> None:
        """Forget the engines."""
        self._engines.clear()

    def _engine(self, drafted: int) -> Engine:
        if drafted not in self._engines:
            context = min(MAX_CONTEXT, self.model.max_context)
            if not drafted:
                self._engines[0] = Engine(self.model, max_context=context)
            else:
                assert self.draft is not None
                drafter = DraftModelDrafter(self.draft, 1, context, self.model.vocab_size)
                config = SpeculativeConfig(num_speculative_tokens=drafted, policy="fixed")
                self._engines[drafted] = Engine(
                    self.model, drafter, config, max_context=context, prefix_reuse=False
                )
        return self._engines[drafted]
