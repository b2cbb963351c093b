"""The checkpoints that benchmarks write for other engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.checkpoints import zoo_target
from forerun import load
from forerun.params import SamplingParams


@pytest.mark.zoo
def test_the_zoos_target_says_the_same_from_a_checkpoint(tmp_path: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=24)
    stored, written = (
        load(name, False, dtype="bf16").generate("def add(a, b):\n", greedy)
        for name in ("zoo", zoo_target(tmp_path))
    )
    assert written.prompt_ids == stored.prompt_ids
    assert written.token_ids == stored.token_ids
