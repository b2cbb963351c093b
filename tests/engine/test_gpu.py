"""The same promises on an accelerator; run with `pytest -m gpu` where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.models import load_model
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import ToyModel, TreeDrafter
from tests.helpers.tiny_models import VOCAB, tiny_model, tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator"),
]
PROMPTS = [tokens(1, length, seed=length)[0].tolist() for length in (3, 9, 1, 17)]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=20),
        SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=20),
    ],
    ids=["greedy", "seeded"],
)
def test_speculation_equals_plain_decoding_in_float64(
    family: str, params: SamplingParams, tmp_path: Path
) -> None:
    tiny_model(family).save_pretrained(tmp_path)
    target = load_model(tmp_path, dtype="fp64", device="cuda")
    expected = []
    for prompt in PROMPTS:
        stream = Engine(target).stream_plain(prompt, params)
        expected.append(tuple(event.token_id for event in stream))
    for drafter in (
        DraftModelDrafter(target, 4, target.max_context),
        TreeDrafter(ToyModel(VOCAB), (3, 2)),
    ):
        config = SpeculativeConfig(num_speculative_tokens=3, policy="fixed")
        engine = Engine(target, drafter, config, max_batch_size=4)
        assert [one.token_ids for one in engine.generate(PROMPTS, params)] == expected


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_runs_and_counts(dtype: str, tmp_path: Path) -> None:
    tiny_model("qwen3").save_pretrained(tmp_path)
    target = load_model(tmp_path, dtype=dtype, device="cuda")
    drafter = DraftModelDrafter(target, 4, target.max_context)
    engine = Engine(target, drafter, max_batch_size=4)
    completions = engine.generate(PROMPTS, SamplingParams(max_tokens=20))
    assert [len(one.token_ids) for one in completions] == [20] * 4


def test_noise_is_the_same_on_every_device() -> None:
    ours, theirs = (Randomness().gumbel(1, 2, 1000, device) for device in ("cuda", "cpu"))
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-12, atol=1e-12)
