"""The trained heads that come with forerun: they belong to their targets, and change no text."""

from __future__ import annotations

import json
from pathlib import Path

from forerun import load
from forerun.models.zoo import packaged_head
from forerun.params import SamplingParams
from tests.helpers.real_model import needs_smollm2

QUESTION = (
    "Natalia sold clips to 48 of her friends in April, and half as many in May. How many in all?"
)


@needs_smollm2
def test_a_packaged_head_drafts_for_its_target() -> None:
    directory = packaged_head("smollm2", "eagle3")
    assert directory is not None
    own = json.loads((directory / "forerun.json").read_text())
    assert own["target"]["name"] == "smollm2"
    config = {"method": "eagle3", "num_speculative_tokens": 3, "policy": "fixed"}
    engine = load("smollm2", config, max_context=256)
    plain = load("smollm2", False, max_context=256)
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=48, ignore_eos=True)
        answer = engine.generate(QUESTION, params)
        assert answer.token_ids == plain.generate(QUESTION, params).token_ids
        assert answer.stats.num_accepted_tokens > 0


@needs_smollm2
def test_a_packaged_head_drafts_by_default_behind_looking_up(tmp_path: Path) -> None:
    engine = load("smollm2", max_context=256)
    assert engine.drafter is not None
    assert [member.name for member in engine.drafter.members] == ["suffix", "eagle3"]
    (tmp_path / "notes.txt").write_text("What is said here may be quoted.")
    with_corpus = load("smollm2", {"corpus": [str(tmp_path)]}, max_context=256)
    assert with_corpus.drafter is not None
    assert [member.name for member in with_corpus.drafter.members] == ["suffix", "eagle3"]


def test_there_is_no_head_for_other_models() -> None:
    assert packaged_head("zoo-draft", "eagle3") is None
    assert packaged_head("./smollm2", "eagle3") is None
