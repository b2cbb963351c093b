"""Exactness, methods and refusals on an accelerator; run with `pytest -m gpu` where there is one.

The variable FORERUN_TEST_DEVICE names the device: `cuda`, `cpu`, or `pretend`, which finds elsewhere what a
GPU would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.compression import METHODS, Compression
from forerun.contracts import CausalLM, Drafter
from forerun.drafters import DRAFTERS as TABLE
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError, MemoryLimitError
from forerun.measure.attribution import NUMERICS, first_difference
from forerun.models.run_config import resolve
from forerun.params import SamplingParams
from forerun.placement import Placement
from forerun.randomness import Randomness
from forerun.testing import ToyModel, TreeDrafter, check_drafter
from tests import matrix
from tests.helpers.devices import PRETENDED, ToyOnDevice, device_name, loaded
from tests.helpers.pretend_device import pretended
from tests.helpers.tiny_models import VOCAB, tiny_model, tokens
from tests.matrix import DrafterCase

NAME = device_name()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NAME is None, reason="no accelerator"),
]
PROMPTS = [tokens(1, length, seed=length)[0].tolist() for length in (3, 9, 1, 17)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=20)
SAMPLERS = pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
# One of each method, and the trees among the others.
ONE_EACH = [case for case in matrix.DRAFTERS if case.name in TABLE or "tree" in case.name]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device of the tests."""
    if NAME == PRETENDED:
        with pretended(monkeypatch) as device:
            yield device
    else:
        assert NAME is not None
        yield torch.device(NAME)


def plain(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[int, ...]:
    return tuple(event.token_id for event in engine.stream_plain(prompt, params))


def check_near_ties(engine: Engine, params: SamplingParams) -> None:
    """Every output is plain decoding's, but where rounding explains how a near-tie fell."""
    for prompt, ours in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
        assert len(ours.token_ids) == params.max_tokens
        expected = plain(engine, prompt, params)
        found = first_difference(engine.target, None, prompt, ours.token_ids, expected, params)
        assert found is None or found.explanation == NUMERICS


def config(**options: Any) -> SpeculativeConfig:
    return SpeculativeConfig(num_speculative_tokens=3, policy="fixed", **options)


def drafters(target: CausalLM) -> list[Drafter]:
    """A chain of the target itself, most of which is accepted, and trees that mostly are not."""
    own = DraftModelDrafter(target, 4, target.max_context)
    return [own, TreeDrafter(ToyModel(VOCAB), (3, 2))]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantized_weights_are_refused_off_the_cpu(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=f"dtype '{dtype}' is not available .* not on 'cuda'"):
        resolve(Placement(dtype, "cuda"), torch.bfloat16)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "mistral"])
@SAMPLERS
def test_speculation_equals_plain_decoding_in_float64(
    family: str, params: SamplingParams, tmp_path: Path, device: torch.device
) -> None:
    """In a ragged batch, with chains and trees."""
    tiny_model(family).save_pretrained(tmp_path)
    target = loaded(tmp_path, "fp64", device)
    expected = [plain(Engine(target), prompt, params) for prompt in PROMPTS]
    for drafter in drafters(target):
        engine = Engine(target, drafter, config(), max_batch_size=4)
        assert [one.token_ids for one in engine.generate(PROMPTS, params)] == expected


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_differs_at_near_ties_alone(
    dtype: str, tmp_path: Path, device: torch.device
) -> None:
    tiny_model("qwen3").save_pretrained(tmp_path)
    target = loaded(tmp_path, dtype, device)
    for drafter in drafters(target):
        check_near_ties(Engine(target, drafter, config(), max_batch_size=4), GREEDY)


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda case: case.name)
@SAMPLERS
def test_each_method_drafts_on_the_device(
    case: DrafterCase, params: SamplingParams, device: torch.device
) -> None:
    """Over toy models whose logits and states lie there."""
    target = ToyOnDevice(device)
    draft = ToyOnDevice(device, noise=1.0)
    drafter = case.drafter_for(target, draft)
    chosen = config(draft_sample_method=case.draft_sample_method, **case.config)
    engine = Engine(target, drafter, chosen, max_batch_size=4)
    prompts = matrix.PROMPTS["ragged"]
    completions = engine.generate(prompts, params, hints=case.hints)
    assert sum(one.stats.num_draft_tokens for one in completions) > 0
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.token_ids == plain(engine, prompt, params)


def test_no_method_is_left_out() -> None:
    assert {case.name for case in ONE_EACH} >= set(TABLE)


@pytest.mark.parametrize("name", ["draft_model", "ngram", "tree"])
def test_the_law_holds_by_enumeration(name: str, device: torch.device) -> None:
    """Whole sequences over three tokens, under every rule, drawn and greedy, in chains and trees."""
    target = ToyOnDevice(device, 3, sharpness=1.0)
    draft = ToyOnDevice(device, 3, sharpness=1.0, noise=0.8)
    if name == "tree":
        drafter: Drafter = TreeDrafter(draft, (2,))
    else:
        case = next(case for case in matrix.DRAFTERS if case.name == name)
        drafter = case.drafter_for(target, draft)
    result = check_drafter(drafter, target)
    assert result.cases > 0
    assert result.largest_deviation < 1e-12


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8", "int4"])
def test_coded_caches_on_the_device(kv_dtype: str, tmp_path: Path, device: torch.device) -> None:
    tiny_model("qwen3").save_pretrained(tmp_path)
    target = loaded(tmp_path, "fp32", device, kv_dtype)
    for drafter in drafters(target):
        check_near_ties(Engine(target, drafter, config(), max_batch_size=4), GREEDY)


@pytest.mark.parametrize("method", list(METHODS))
def test_caches_evict_on_the_device(method: str, tmp_path: Path, device: torch.device) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    target = loaded(tmp_path, "fp32", device)
    small = Compression(kv_method=method, kv_budget=8, kv_sinks=1, kv_recent=2, kv_interval=5)
    drafter = SuffixDrafter()
    engine = Engine(target, drafter, config(), max_batch_size=4, compression=small)
    completions = engine.generate(PROMPTS, GREEDY)
    assert [len(one.token_ids) for one in completions] == [GREEDY.max_tokens] * 4


def test_noise_is_the_same_on_every_device(device: torch.device) -> None:
    ours, theirs = (Randomness().gumbel(1, 2, 1000, place) for place in (device, "cpu"))
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-12, atol=1e-12)


def test_a_cache_beyond_the_devices_memory_is_refused_in_words(
    tmp_path: Path, device: torch.device
) -> None:
    """For real on a GPU, whose memory has an end."""
    if device.type != "cuda":
        pytest.skip("the memory of this device has no end that is soon reached")
    tiny_model("llama").save_pretrained(tmp_path)
    target = loaded(tmp_path, "fp64", device)
    with pytest.raises(MemoryLimitError, match="not enough memory on cuda"):
        target.new_cache(1 << 20, 1 << 20)
    # What was taken before the end was reached is free again.
    engine = Engine(target, NgramDrafter(), config())
    assert len(engine.generate(PROMPTS[0], GREEDY).token_ids) == GREEDY.max_tokens
