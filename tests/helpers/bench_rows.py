"""Rows of a benchmark that were never measured, to test what is made of them."""

from __future__ import annotations

from forerun.bench.pairs import MeasuredPair, PairKey
from forerun.bench.runs import Side
from forerun.core import Stats

STAGES = {"prefill": 0.1, "draft": 0.1, "target": 0.5, "verify": 0.1, "host": 0.0}


def made_row(
    setting: str,
    prompt: int,
    speedup: float,
    *,
    category: str = "code",
    temperature: float = 0.0,
    batch: int = 1,
    loops: int = 0,
    differences: tuple[str, ...] = (),
) -> MeasuredPair:
    """A pair of 12 tokens each, of which plain decoding takes one second."""
    seconds = 1.0 / speedup
    side = Side(12, seconds, 0.1, (50.0, 150.0), STAGES)
    plain = Side(12, 1.0, 0.1, (80.0,) * 11, STAGES)
    stats = Stats(
        num_drafts=3,
        num_draft_tokens=9,
        num_accepted_tokens=7,
        num_accepted_tokens_per_pos=[3, 2, 2],
        num_plain_rounds=2,
        num_emitted_tokens=12,
        num_emitted_in_drafts=10,
    )
    key = PairKey(
        setting, temperature, batch, category, tuple(f"p{prompt}+{i}" for i in range(batch))
    )
    same = batch - len(differences)
    return MeasuredPair(key, "0" * 12, side, plain, stats, loops, same, differences)


def failed_row(setting: str, prompt: int, error: str) -> MeasuredPair:
    """A gap."""
    return MeasuredPair(PairKey(setting, 0.0, 1, "code", (f"p{prompt}+0",)), "0" * 12, error=error)
