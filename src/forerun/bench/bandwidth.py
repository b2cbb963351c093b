"""Plain decoding beside the machine's read bandwidth: every token reads the weights once."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun import _native
from forerun.bench.machine import TIMES_THE_CACHE, Machine
from forerun.bench.rows import MeasuredPair
from forerun.bench.traffic import forward_bytes
from forerun.contracts import CausalLM
from forerun.models.processor_caches import last_level_cache


@dataclass
class Bandwidth:
    """Bytes that a token reads, and the rate at which a plain loop reads as many.

    Args:
        bytes_per_token: bytes that a token of a single request reads, in the middle of its output.
        machine: reader of as many bytes; None where nothing measures it, as on a GPU.
        reads: measured bytes per second.
    """

    bytes_per_token: float
    machine: Machine | None = None
    reads: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, model: CausalLM, context: int) -> Bandwidth:
        """Bandwidth of a model that decodes after `context` tokens.

        Raises:
            CheckpointError: for a model whose shape is unknown.
        """
        count = forward_bytes(model, 1, context)
        if model.device.type != "cpu" or not _native.AVAILABLE:
            return cls(count)
        # The buffer holds these bytes, or what no cache holds.
        cache = min(last_level_cache(), int(count) // TIMES_THE_CACHE + 1)
        return cls(count, Machine(cache))

    def measure(self) -> None:
        """Measure the rate once more."""
        if self.machine is not None:
            self.reads.append(self.machine.read_like(int(self.bytes_per_token)))

    def facts(self, rows: Sequence[MeasuredPair]) -> dict[str, Any]:
        """Rates that plain runs of single requests reach, ready for JSON; empty without such runs."""
        sides = [row.plain for row in rows if row.plain is not None and row.key.batch == 1]
        gaps = [gap for side in sides for gap in side.gaps]
        if not gaps:
            return {}
        rate = 1e3 * len(gaps) / sum(gaps)
        facts: dict[str, Any] = {
            "tokens_per_second": rate,
            "bytes_per_token": round(self.bytes_per_token),
            "gigabytes_per_second": rate * self.bytes_per_token / 1e9,
        }
        if self.reads:
            read = statistics.median(self.reads)
            facts["read_gigabytes_per_second"] = read / 1e9
            facts["share_of_read_bandwidth"] = rate * self.bytes_per_token / read
        return facts

    def sentence(self, rows: Sequence[MeasuredPair]) -> str:
        """The rates in words; empty without plain runs of single requests."""
        facts = self.facts(rows)
        if not facts:
            return ""
        text = (
            f"plain decoding: {facts['tokens_per_second']:.0f} tokens/s after the first one, "
            f"{self.bytes_per_token / 1e6:.0f} MB a token, {facts['gigabytes_per_second']:.1f} GB/s"
        )
        if self.reads:
            text += (
                f"; a loop that only reads as many bytes reaches "
                f"{facts['read_gigabytes_per_second']:.1f} GB/s on the same threads"
            )
        return text
