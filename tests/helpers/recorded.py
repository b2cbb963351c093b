"""Made records of outputs and costs for replays."""

from __future__ import annotations

import random
from collections.abc import Mapping

from benchmarks.rivals.costs import StageCosts
from benchmarks.rivals.records import RecordedOutput
from forerun.costs.table import CostTable


def output(
    candidate: str, length: int = 40, seed: int = 0, longest: int = 6, text: int = 0
) -> RecordedOutput:
    """A random one: nothing is accepted beyond the end of its text."""
    source, words = random.Random(f"{candidate} {seed}"), random.Random(text)
    limits = [min(longest, length - at - 1) for at in range(length)]
    depths = tuple(source.randint(0, limit) for limit in limits)
    return RecordedOutput(
        candidate=candidate,
        prompt_id=str(text),
        category="made",
        prompt_ids=(1, 2, 3),
        token_ids=tuple(words.randrange(9) for _ in range(length)),
        max_tokens=length,
        nodes=depths,
        depths=depths,
        accepted=tuple(source.randint(0, depth) for depth in depths),
        confidences=tuple(source.random() for _ in depths),
    )


def costs(draft: float = 0.1, verify: float = 0.1, first_draft: float = 0.0) -> StageCosts:
    """A plain round takes 1 second, a drafted token `draft` and its verification `verify` more."""

    def table(*points: tuple[int, float]) -> CostTable:
        return CostTable.from_rows(
            (n, batch, 0, seconds) for n, seconds in points for batch in (1, 8)
        )

    return StageCosts(
        draft=table((1, 0.01), (11, 0.01 + 10 * draft)),
        target=table((1, 0.9), (11, 0.9 + 10 * verify)),
        verify=table((1, 0.05)),
        plain=table((1, 1.0)),
        host=table((1, 0.05)),
        first_draft=first_draft,
        prefill=(0.01, 0.0),
        plain_prefill=1.0,
    )


def recorded(seed: int = 0, length: int = 40) -> Mapping[str, RecordedOutput]:
    """One text under two candidates."""
    return {
        name: output(name, length, seed, longest, text=seed)
        for name, longest in (("cheap", 4), ("good", 8))
    }
