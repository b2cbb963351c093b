"""Result of `forerun roofline`, measured or predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.bench.roofline.rows import DRAFT, TARGET, Forward, free_tokens
from forerun.costs.forwards import Limits
from forerun.costs.table import CostTable


@dataclass(frozen=True)
class InCache:
    """Times of a draft's token from the last-level cache and from memory.

    Args:
        bytes: that a token of the draft reads.
        cache_bytes: of the last-level cache.
        stays: whether it fits into half of the cache, which the target's weights stream through.
        cached_bandwidth, memory_bandwidth: bytes a second of reading as much repeatedly, and of
            reading what is in no cache.
        cached_seconds, memory_seconds: measured: of a token right after another one, and after
            four times the cache has been read.
        in_round_seconds: of the first token after the target has run.
    """

    bytes: float
    cache_bytes: int
    stays: bool
    cached_bandwidth: float
    memory_bandwidth: float
    cached_seconds: float
    memory_seconds: float
    in_round_seconds: float


@dataclass(frozen=True)
class Prefill:
    """The keys and values of a prompt, without logits."""

    tokens: int
    seconds: float
    tokens_per_second: float
    intensity: float
    flops_per_second: float
    share_of_peak: float


@dataclass(frozen=True)
class Roofline:
    """Forwards and the roof above them.

    Args:
        mode: measured or predicted.
        hardware: its name.
        rows: of the target, then of the draft, by context and tokens.
        reads: bytes a second by what holds the working set, the nearest first.
        peaks: FLOP a second by precision.
        facts: what else goes into `--json`.
        prefill, in_cache: measured alone.
        room: bytes that a draft may have to stay in the cache; None if unknown.
        notes: sentences for people.
    """

    mode: str
    hardware: str
    rows: Sequence[Forward]
    reads: Mapping[str, float]
    peaks: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    prefill: Prefill | None = None
    in_cache: InCache | None = None
    room: float | None = None
    notes: Sequence[str] = ()

    @property
    def limits(self) -> Limits:
        """Limits of the target's forwards."""
        return self.rows[0].limits

    def of(self, role: str) -> dict[int, list[Forward]]:
        """The rows of target or draft by context."""
        found: dict[int, list[Forward]] = {}
        for row in self.rows:
            if row.role == role:
                found.setdefault(row.context, []).append(row)
        return found

    @property
    def free(self) -> list[dict[str, int]]:
        """By context, the most tokens that are checked for free."""
        return [
            {
                "context": context,
                "tokens": free_tokens(rows),
                "predicted_tokens": free_tokens(rows, predicted=True),
            }
            for context, rows in self.of(TARGET).items()
        ]

    def costs(self, role: str) -> CostTable | None:
        """Seconds of forwards, measured or else predicted; None without rows."""
        found = [
            (row.n, 1, row.context, self.seconds(row)) for row in self.rows if row.role == role
        ]
        return CostTable.from_rows(found) if found else None

    def seconds(self, row: Forward) -> float:
        """Seconds of a forward: those of one token times the ratio, which was measured in pairs."""
        return self.of(row.role)[row.context][0].time * row.rise

    def as_facts(self) -> dict[str, Any]:
        """Everything but the rows, ready for JSON."""
        tables = {role: self.costs(role) for role in (TARGET, DRAFT)}
        return {
            "machine": self.hardware,
            "limits": {
                "bandwidth_bytes_per_second": self.limits.bandwidth,
                "peak_flops": self.limits.peak,
                "ridge_point": self.limits.ridge_point,
            },
            "reads_bytes_per_second": dict(self.reads),
            "peaks_flops": dict(self.peaks),
            **self.facts,
            "free": self.free,
            "draft_in_cache": None if self.in_cache is None else asdict(self.in_cache),
            "prefill": None if self.prefill is None else asdict(self.prefill),
            "costs": {role: table and table.rows for role, table in tables.items()},
        }
