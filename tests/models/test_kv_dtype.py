"""Models whose keys and values are of another precision than their weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import forerun
from forerun.bench.forwards import forward_bytes
from forerun.compression import Compression
from forerun.core import View
from forerun.drafters.ngram import NgramDrafter
from forerun.errors import CacheError, ConfigError, SessionError, UnknownNameError
from forerun.models import Checkpoint
from forerun.models.checkpoint import loading_once
from forerun.models.run_config import resolve, with_kv_dtype
from forerun.params import SamplingParams
from forerun.placement import KV_DTYPES, Placement
from tests.helpers.backends import BACKENDS, needs_kernels
from tests.helpers.forwards import run
from tests.helpers.kernel_models import last_of
from tests.helpers.tiny_models import PATHS, TREE, VOCAB, random_model, tokens

CODED = ["int8", "int4"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Checkpoints with heads of 16 and 96 dimensions, and a sliding window."""
    folder = tmp_path_factory.mktemp("kv_dtype")
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 3, "intermediate_size": 40}
    sizes |= {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2}
    sizes |= {"max_position_embeddings": 256, "eos_token_id": 3, "bos_token_id": 2}
    kinds = {
        "narrow": ("llama", {"head_dim": 16}),
        "wide": ("qwen3", {"head_dim": 96}),
        "sliding": ("mistral", {"head_dim": 32, "sliding_window": 5}),
        "odd": ("llama", {"head_dim": 24}),
    }
    for name, (kind, extra) in kinds.items():
        random_model(AutoConfig.for_model(kind, **sizes, **extra)).save_pretrained(folder / name)

    def load(name: str, backend: str, kv_dtype: str = "auto") -> Any:
        checkpoint = Checkpoint.open(str(folder / name))
        placement = Placement("fp32", "cpu", backend, kv_dtype)
        return checkpoint.load(checkpoint.run_config(placement))

    return load


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_torch_runs_rows_of_several_lengths_together(kv_dtype: str, saved: Any) -> None:
    """Each as alone; their tokens are written to slots that lie apart."""
    model = saved("narrow", "torch", kv_dtype)
    prompts = [tokens(1, length, seed=length)[0].tolist() for length in (7, 3, 13)]
    together = run(model, model.new_cache(3, 16), prompts).logits
    for prompt, rows in zip(prompts, together, strict=True):
        row, alone = (
            rows[len(prompt) - 1],
            run(model, model.new_cache(1, 16), [prompt]).logits[0, -1],
        )
        torch.testing.assert_close(row, alone, rtol=1e-3, atol=1e-3)


@needs_kernels
@pytest.mark.parametrize("name", ["narrow", "wide", "sliding"])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_kernels_give_the_same_whatever_runs_together(name: str, kv_dtype: str, saved: Any) -> None:
    """A prompt in pieces beside others, then a tree: each node as its path token by token."""
    model = saved(name, "kernels", kv_dtype)
    prompts = [tokens(1, length, seed=length)[0].tolist() for length in (70, 3, 130)]
    nodes = tokens(3, len(TREE), seed=1).tolist()
    cache, rows = model.new_cache(4, 160), [3, 0, 2]
    run(model, cache, [prompt[:2] for prompt in prompts], rows)
    run(model, cache, [prompt[2:] for prompt in prompts], rows)
    logits = run(model, cache, nodes, rows, trees=[TREE] * 3).logits
    for index, prompt in enumerate(prompts):
        for node in (0, len(TREE) - 1):
            line = prompt + [nodes[index][step] for step in PATHS[node]]
            assert torch.equal(logits[index, node], last_of(model, line))
    for row, prompt in zip(rows, prompts, strict=True):
        cache.keep(row, len(prompt), PATHS[-1])
    following = run(model, cache, [[5]] * 3, rows).logits
    for index, prompt in enumerate(prompts):
        line = prompt + [nodes[index][step] for step in PATHS[-1]] + [5]
        assert torch.equal(following[index, 0], last_of(model, line))


@needs_kernels
@pytest.mark.parametrize("name", ["narrow", "wide", "sliding"])
@pytest.mark.parametrize(("kv_dtype", "coarse"), [("int8", False), ("int8", True), ("int4", False)])
def test_kernels_and_torch_read_the_same(
    name: str, kv_dtype: str, coarse: bool, saved: Any
) -> None:
    view = View(0, 64, coarse=True) if coarse else None
    found = []
    for backend, kept in (("kernels", kv_dtype), ("torch", kv_dtype), ("torch", "fp32")):
        model = saved(name, backend, kept)
        cache, seen = model.new_cache(1, 64), view if kept == "int8" else None
        run(model, cache, tokens(1, 20), view=seen)
        out = run(model, cache, tokens(1, len(TREE), seed=1), trees=[TREE], view=seen).logits
        found.append(out)
    kernels, by_torch, exact = found
    # A number between two codes may become either, so not to the last digit.
    assert (kernels - by_torch).norm() < 0.3 * (by_torch - exact).norm()


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_grow_as_bits_shrink(backend: str, saved: Any) -> None:
    ids, off = tokens(1, 60), {}
    exact = saved("wide", backend, "fp32")
    wanted = run(exact, exact.new_cache(1, 64), ids).logits
    for kv_dtype in ("bf16", "int8", "int4"):
        model = saved("wide", backend, kv_dtype)
        off[kv_dtype] = float((run(model, model.new_cache(1, 64), ids).logits - wanted).norm())
    assert 0 < off["bf16"] < off["int8"] < off["int4"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_dtype", CODED)
def test_memory_is_that_of_the_codes(backend: str, kv_dtype: str, saved: Any) -> None:
    """Against bf16, with a scale for each 64 numbers or, in heads of 96 dimensions, 32."""
    model, plain = saved("wide", backend, kv_dtype), saved("wide", backend, "bf16")
    held, whole = (
        one.new_cache(1, 128).nbytes - (128 * 8 if backend == "torch" else 0)
        for one in (model, plain)
    )
    assert whole / held == {"int8": 2 / (1 + 2 / 32), "int4": 2 / (0.5 + 2 / 32)}[kv_dtype]
    ratio = (plain.bytes_read(10**6, 3) - plain.bytes_read(0, 3)) / (
        model.bytes_read(10**6, 3) - model.bytes_read(0, 3)
    )
    assert ratio == pytest.approx(whole / held)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_are_shared(backend: str, saved: Any) -> None:
    with loading_once():
        one, other = saved("narrow", backend), saved("narrow", backend, "int8")
    assert one.kv_dtype == "auto"
    assert other.kv_dtype == "int8"
    shared = "_decoder" if backend == "kernels" else "weights"
    assert getattr(one, shared) is getattr(other, shared)
    assert with_kv_dtype(one, "auto") is one


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_that_no_group_divides(backend: str, saved: Any) -> None:
    with pytest.raises(ConfigError, match=r"multiple of 16 .* have 24; use 'bf16'"):
        saved("odd", backend, "int4")
    assert saved("odd", backend, "bf16").new_cache(1, 4).length(0) == 0


def test_names_and_models_that_have_none() -> None:
    with pytest.raises(UnknownNameError, match="int16"):
        Placement(kv_dtype="int16")
    with pytest.raises(ConfigError, match="runs through transformers"):
        resolve(Placement(device="cpu", kv_dtype="int8"), None, native=False)
    assert resolve(Placement(device="cpu", kv_dtype="auto"), None, native=False).kv_dtype == "auto"


@needs_kernels
def test_a_coarse_view_of_another_cache(saved: Any) -> None:
    model = saved("narrow", "kernels", "int4")
    cache = model.new_cache(1, 8)
    with pytest.raises(CacheError, match="kv_dtype 'int4'"):
        run(model, cache, [[1, 2]], view=View(0, 4, coarse=True))
    assert cache.length(0) == 0
    assert copy.copy(model).kv_dtype == "int4"


@pytest.mark.parametrize("kv_dtype", CODED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_codes_are_evicted_too(backend: str, kv_dtype: str, saved: Any) -> None:
    """With drafts and without, and the memory is that of both."""
    target = saved("wide", backend, kv_dtype)
    compression = Compression(kv_method="h2o", kv_budget=24, kv_recent=8, kv_sinks=2, kv_interval=8)
    config = forerun.SpeculativeConfig(policy="fixed", num_speculative_tokens=3)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    found = []
    for drafter in (None, NgramDrafter(1, 3)):
        engine = forerun.Engine(target, drafter, config, compression=compression)
        found.append(engine.generate(tokens(1, 90)[0].tolist(), params).token_ids)
    assert found[0] == found[1]
    whole = forerun.Engine(target).generate(tokens(1, 90)[0].tolist(), params).token_ids
    assert whole != found[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_dtype", CODED)
def test_a_session_of_codes(backend: str, kv_dtype: str, saved: Any, tmp_path: Path) -> None:
    text, params = tokens(1, 100)[0].tolist(), SamplingParams(temperature=0, max_tokens=20)
    target = saved("wide", backend, kv_dtype)
    wanted = forerun.Engine(target).generate([*text, 5], params).token_ids
    reader = forerun.Engine(target)
    reader.generate(text, SamplingParams(temperature=0, max_tokens=1))
    reader.sessions.save(tmp_path / "one.session")
    other = forerun.Engine(target)
    other.sessions.load(tmp_path / "one.session")
    assert other.generate([*text, 5], params).token_ids == wanted
    another = forerun.Engine(saved("wide", backend, "bf16"))
    with pytest.raises(SessionError, match=kv_dtype):
        another.sessions.load(tmp_path / "one.session")


@needs_kernels
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_saved_row_holds_its_own_text_alone(kv_dtype: str, saved: Any) -> None:
    model = saved("narrow", "kernels", kv_dtype)
    used, fresh = model.new_cache(1, 200), model.new_cache(1, 200)
    run(model, used, tokens(1, 190))
    used.trim(0, 0)
    for cache in (used, fresh):
        run(model, cache, tokens(1, 100, seed=1))
    for layer in range(3):
        found, wanted = (cache.read_row(0, layer, 90)["tiles"] for cache in (used, fresh))
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_bytes_that_reports_count_are_those_of_the_cache(
    backend: str, kv_dtype: str, saved: Any
) -> None:
    """What benchmarks count grows with the context as what drafters are told does."""
    model = saved("wide", backend, kv_dtype)
    counted = forward_bytes(model, 1, 200) - forward_bytes(model, 1, 100)
    told = model.bytes_read(200, model.num_layers) - model.bytes_read(100, model.num_layers)
    assert counted == pytest.approx(told)
