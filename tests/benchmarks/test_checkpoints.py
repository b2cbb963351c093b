"""The checkpoints that benchmarks write for other engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.checkpoints import zoo_target
from benchmarks.deepened import write_deep
from forerun import load
from forerun.models.zoo import packaged_path
from forerun.params import SamplingParams


@pytest.mark.zoo
def test_the_zoos_target_says_the_same_from_a_checkpoint(tmp_path: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=24)
    stored, written = (
        load(name, False, dtype="bf16").generate("def add(a, b):\n", greedy)
        for name in ("zoo", zoo_target(tmp_path / "zoo"))
    )
    assert written.prompt_ids == stored.prompt_ids
    assert written.token_ids == stored.token_ids


@pytest.mark.zoo
def test_a_deeper_target_says_the_same_in_more_layers(tmp_path: Path) -> None:
    file = write_deep(packaged_path("zoo"), tmp_path / "deep.gguf", 11)
    answers = []
    for path in (zoo_target(tmp_path / "own"), zoo_target(tmp_path / "deep", file)):
        engine = load(path, False, dtype="int8")
        answers.append(engine.generate("def add(a, b):\n", temperature=0.0, max_tokens=24))
    assert engine.target.num_layers == 11
    assert answers[0].token_ids == answers[1].token_ids
