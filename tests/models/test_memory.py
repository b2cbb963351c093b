"""Sizes are known before anything is loaded, and too large ones are refused with the numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from backends import needs_kernels
from tiny_models import FAMILIES, NATIVE, tiny_config, tiny_model

from forerun.errors import MemoryLimitError, UnsupportedModelError
from forerun.models import MemoryNeed, available_bytes, check_memory, describe, memory_need
from forerun.models.memory import refuse_excess, storage_of
from forerun.models.placement import Storage

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
        ids = torch.ones(1, 5, dtype=torch.int64)
        loaded.forward(ids, torch.arange(5)[None], cache.view([0]))
        assert cache.nbytes == 5 * summary.cache_bytes_per_token(torch.float32)


@needs_kernels
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("name", NATIVE)
def test_the_kernels_take_little_more(name: str, dtype: str, load: Any) -> None:
    """Rows are padded to blocks, heads and slots to lines: much for tiny models, but with a bound."""
    config = tiny_config(name)
    storage = storage_of(config, CPU, dtype)
    assert storage.backend == "kernels"
    model = load(name, dtype, "kernels")
    need = memory_need(name, config, storage, rows=2, capacity=64)
    assert need.weight_bytes / 2 < model.weight_bytes < 8 * need.weight_bytes
    assert need.cache_bytes <= model.new_cache(2, 64).nbytes < 3 * need.cache_bytes


def test_what_cannot_run_is_not_described() -> None:
    from transformers import AutoConfig

    with pytest.raises(UnsupportedModelError, match=r"\(mamba\) is recurrent"):
        describe(AutoConfig.for_model("mamba"))


def test_needs_add_up() -> None:
    config = tiny_config("llama")
    need = memory_need("target", config, Storage("bf16", "torch"), rows=3, capacity=10)
    summary = describe(config)
    assert need.weight_bytes == summary.weight_bytes["bf16"]
    assert need.cache_bytes == 30 * summary.cache_values_per_token * 2
    assert need.total == need.weight_bytes + need.cache_bytes


def test_too_much_is_refused_with_the_numbers() -> None:
    needs = [MemoryNeed("target", 3 * 2**30, 2**29), MemoryNeed("draft", 2**30, 0)]
    refuse_excess(needs, sum(need.total for need in needs), CPU)
    refuse_excess(needs, None, CPU)
    with pytest.raises(MemoryLimitError, match=r"4\.50 GiB are needed on cpu but 4\.00 GiB are"):
        refuse_excess(needs, 2**32, CPU)


def test_check_memory_asks_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = tiny_config("llama"), tiny_config("qwen3")
    check_memory(target, draft, device="cpu", rows=1, capacity=64)
    monkeypatch.setattr("forerun.models.memory.available_bytes", lambda _: 1000)
    with pytest.raises(MemoryLimitError, match=r"target .* draft .* smaller dtype"):
        check_memory(target, draft, dtype="bf16", device="cpu", rows=1, capacity=64)


def test_available_bytes_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    known = available_bytes(CPU)
    assert known is not None
    assert known > 2**20

    def missing(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    whole = available_bytes(CPU)
    assert whole is not None
    assert whole > 2**20
    monkeypatch.delattr("os.sysconf")
    assert available_bytes(CPU) is None


def test_importing_does_not_import_transformers() -> None:
    code = "import sys, forerun.models.memory; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
