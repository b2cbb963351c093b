"""Sizes are known before anything is loaded, and too large ones are refused with the numbers."""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import psutil
import pytest
import torch

from forerun.compression import Compression
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.engine import Engine
from forerun.errors import MemoryLimitError, UnsupportedModelError
from forerun.models import Placement, RunConfig, available_bytes, describe, model_from_tensors
from forerun.models.memory import MemoryNeed, check_memory, memory_need
from forerun.models.run_config import resolve
from forerun.params import SamplingParams
from tests.helpers.backends import needs_kernels
from tests.helpers.covering import covering
from tests.helpers.forwards import run
from tests.helpers.kernel_models import model as kernel_model
from tests.helpers.tiny_models import FAMILIES, NATIVE, tiny_config, tiny_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_are_those_of_the_model(name: str, load: Any) -> None:
    summary = describe(tiny_config(name))
    model = tiny_model(name)
    assert summary.parameters == sum(p.numel() for p in model.parameters())
    assert summary.weight_bytes["bf16"] == 2 * summary.parameters
    assert (summary.vocab_size, summary.num_layers, summary.max_context) == (61, 3, 64)
    loaded = load(name)
    cache = loaded.new_cache(2, 5)
    if summary.native:
        held = sum(t.nbytes for t in (*cache.keys, *cache.values))
        assert held == 2 * 5 * summary.cache_bytes_per_token(torch.float32)
        assert sum(t.nbytes for t in loaded.weights.values()) == summary.weight_bytes["fp32"]
    else:
        run(loaded, cache, [[1] * 5])
        assert cache.nbytes == 5 * summary.cache_bytes_per_token(torch.float32)


@needs_kernels
@pytest.mark.parametrize(("name", "dtype"), covering(NATIVE, ["fp32", "bf16", "int8", "int4"]))
def test_the_kernels_take_little_more(name: str, dtype: str, load: Any) -> None:
    """Rows are padded to blocks, heads and slots to lines: much for tiny models, but with a bound."""
    run_config = resolve(Placement(dtype, "cpu"), None)
    assert run_config.backend == "kernels"
    model = load(name, dtype, "kernels")
    need = memory_need(name, describe(tiny_config(name)), run_config, rows=2, capacity=64)
    assert need.weight_bytes / 2 < model.weight_bytes < 8 * need.weight_bytes
    assert need.cache_bytes <= model.new_cache(2, 64).nbytes < 3 * need.cache_bytes


def test_what_cannot_run_is_not_described() -> None:
    from transformers import AutoConfig

    with pytest.raises(UnsupportedModelError, match=r"\(mamba\) is recurrent"):
        describe(AutoConfig.for_model("mamba"))


def test_needs_add_up() -> None:
    summary = describe(tiny_config("llama"))
    need = memory_need("target", summary, RunConfig("bf16", "torch", CPU), rows=3, capacity=10)
    assert need.weight_bytes == summary.weight_bytes["bf16"]
    assert need.cache_bytes == 30 * summary.cache_values_per_token * 2
    assert need.total == need.weight_bytes + need.cache_bytes


def test_too_much_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [MemoryNeed("target", 3 * 2**30, 2**29), MemoryNeed("draft", 2**30, 0)]
    free = sum(need.total for need in needs)
    monkeypatch.setattr("forerun.models.memory.available_bytes", lambda _: free)
    check_memory(needs, CPU)
    free = 2**32
    with pytest.raises(
        MemoryLimitError, match=r"4\.5 GiB are needed on cpu but 4 GiB are"
    ) as caught:
        check_memory(needs, CPU)
    assert "target 3 GiB + cache 512 MiB, draft 1 GiB + cache 0 B" in str(caught.value)


def test_available_bytes_are_some_of_the_machine() -> None:
    assert 2**20 < available_bytes(CPU) < psutil.virtual_memory().total


def out_of_memory(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_weights_that_a_device_does_not_hold_are_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forerun.models.checkpoint.read_weights", out_of_memory)
    model = tiny_model("llama")
    with pytest.raises(
        MemoryLimitError, match=r"not enough memory on cpu for the weights of tiny in fp32; use"
    ):
        model_from_tensors(model.config, model.state_dict(), name="tiny")


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_forwards_without_memory_say_so_and_the_engine_goes_on(
    name: str, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of forerun's own decoder, and of transformers."""
    model = load(name)
    engine = Engine(model, NgramDrafter(), max_context=32)
    params = SamplingParams(temperature=0, max_tokens=5)
    expected = engine.generate([1, 2, 3], params).token_ids
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", out_of_memory)
        with pytest.raises(MemoryLimitError, match="not enough memory on cpu for a forward of"):
            engine.generate([1, 2, 4], params)
    assert engine.generate([1, 2, 3], params).token_ids == expected


def test_caches_without_memory_are_refused_in_words(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("llama")
    monkeypatch.setattr(torch, "zeros", out_of_memory)
    message = "not enough memory on cpu for a cache of 2 rows of 32 tokens; use a smaller context"
    with pytest.raises(MemoryLimitError, match=message):
        Engine(model, max_batch_size=2, max_context=32)
    small = Compression(kv_method="snapkv", kv_budget=16, kv_sinks=1, kv_recent=2)
    with pytest.raises(MemoryLimitError, match=message):
        Engine(model, max_batch_size=2, max_context=32, compression=small)


def test_free_memory_is_within_the_limit_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.models.memory.memory_left", lambda: 12345)
    assert available_bytes(CPU) == 12345


@needs_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux")
@pytest.mark.parametrize("shorten", ["trim", "keep"])
def test_a_shortened_row_of_the_kernels_takes_no_more_memory_than_its_text(shorten: str) -> None:
    """Its memory goes back to the system; what it keeps, and what other rows hold, stays."""
    length, kept = 40_000, 700
    cache = kernel_model("llama").new_cache(2, length)
    for row, layer in product((0, 1), range(3)):
        shapes = cache.row_shapes(length).items()
        tiles = {
            name: torch.full(size, row + layer + 1, dtype=kind) for name, (kind, size) in shapes
        }
        cache.write_row(row, layer, length, tiles)
    held = [cache.read_row(*place)["tiles"] for place in ((0, 2, kept), (1, 2, length))]
    before = psutil.Process().memory_info().rss
    if shorten == "trim":
        cache.trim(0, kept)
    else:
        cache.keep(0, kept - 1, [5])
    freed = before - psutil.Process().memory_info().rss
    assert 0.9 < freed / (cache.nbytes / 2) < 1
    for content, place in zip(held, ((0, 2, kept), (1, 2, length)), strict=True):
        assert torch.equal(content, cache.read_row(*place)["tiles"])
