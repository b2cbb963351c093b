"""What the CPU kernels cannot run is refused with forerun's own errors, and never a crash."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun import _native
from forerun.core import Batch, Tree
from forerun.errors import CacheError, CheckpointError, ConfigError, MemoryLimitError
from forerun.models import model_from_tensors
from forerun.models.cpu import CpuModel, KernelChoice, set_num_threads, shared_pool
from forerun.models.cpu.threads import thread_pool
from forerun.models.sources import TensorSource
from tests.helpers.forwards import run
from tests.helpers.kernel_models import (
    PRECISIONS,
    architecture,
    model,
    needs_kernels,
    plain,
    weights,
)

pytestmark = needs_kernels
EMBEDDING = "model.embed_tokens.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"


def batch(token_ids: Any = ((1, 2),), positions: Any = ((0, 1),), **options: Any) -> Batch:
    return Batch(range(len(token_ids)), token_ids, positions, **options)


REFUSED: dict[str, tuple[Callable[[], Batch], str]] = {
    "below the vocabulary": (lambda: batch([[-1, 2]]), "-1 is not a token id; they end at 32"),
    "beyond the vocabulary": (lambda: batch([[1, 33]]), "33 is not a token id"),
    "no numbers": (lambda: batch([["1", "2"]]), "mistral cannot run this"),
    "half positions": (lambda: batch(positions=[[0, 0.5]]), "mistral cannot run this"),
    "hidden width": (lambda: batch(hidden_in=torch.zeros(1, 2, 7)), r"shape \[1, 2, 7\]"),
    "layers": (lambda: batch(layers=range(4)), "mistral cannot run range"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_that_do_not_fit(case: str) -> None:
    make, message = REFUSED[case]
    one = model("mistral")
    cache = one.new_cache(1, 16)
    with pytest.raises(ConfigError, match=message) as caught:
        one.forward(make(), cache)
    assert "\n" not in str(caught.value)
    assert cache.length(0) == 0
    # It goes on as if nothing had been.
    found = one.forward(batch(), cache).logits
    assert found is not None
    assert torch.equal(found[0], plain(one, [1, 2])[0])


@pytest.mark.parametrize("positions", [[0, 2], [200, 201], [9, 1]], ids=str)
def test_positions_leave_none_out(positions: list[int]) -> None:
    one = model("mistral")
    cache = one.new_cache(1, 16)
    with pytest.raises(CacheError, match=r"position \d+ in row 0 follows [01] tokens"):
        one.forward(batch(positions=[positions]), cache)
    assert cache.length(0) == 0


def test_inputs_may_lie_anywhere_in_memory() -> None:
    one = model("mistral", "bf16")
    tokens = list(range(0, 12, 2))
    options: dict[str, Any] = {"layers": range(1), "hidden_layers": (0,)}
    states = run(one, one.new_cache(1, 8), [tokens], **options).hidden[0]
    spread = states.repeat_interleave(2, dim=-1)[..., ::2].requires_grad_()
    assert not spread.is_contiguous()
    found = run(one, one.new_cache(1, 8), [tuple(tokens)], hidden_in=spread).logits
    assert torch.equal(found[0], plain(one, tokens)[0])


def test_a_tree_may_hide_committed_tokens_behind_a_window() -> None:
    """What a token sees then lies at lower places than its position says."""
    one = model("mistral")
    cache = one.new_cache(1, 32)
    run(one, cache, [[0] * 20])
    alone = Tree((*[-1] * 21, 20))
    out = one.forward(batch(positions=[[20, 21]], trees=[alone]), cache).logits
    assert out is not None
    assert torch.isfinite(out).all()


MASKS = {
    "blind": (np.zeros((1, 2, 2), dtype=bool), "let every token see itself"),
    "narrow": (np.ones((1, 2, 1), dtype=bool), "tree_mask has a shape that does not fit"),
    "flat": (np.ones((2, 2), dtype=bool), "incompatible"),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks_that_do_not_fit(case: str) -> None:
    """No batch makes them; the kernels look all the same."""
    mask, message = MASKS[case]
    one = model("mistral")
    cache = one.new_cache(1, 16)
    inputs = cache.native, [0], [[1, 2]], [[0, 1]], (0, 3), None, False
    with pytest.raises((TypeError, ValueError), match=message):
        one._decoder.forward(shared_pool(), *inputs, mask, None, ((), None), None)
    assert cache.length(0) == 0


def test_a_cache_of_another_model() -> None:
    with pytest.raises(ConfigError, match="the cache is of another model"):
        model("mistral").forward(batch(), model("llama").new_cache(1, 8))


def test_what_is_not_a_cache_of_the_kernels() -> None:
    one = model("mistral")
    on_torch = model_from_tensors(architecture("mistral").config, weights("mistral"))
    for cache in (on_torch.new_cache(1, 8), one.new_cache(1, 8).native, None):
        with pytest.raises(CacheError, match="make a cache with its new_cache"):
            one.forward(batch(), cache)  # type: ignore[arg-type]


CACHES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "length of no row": (lambda c: c.length(-1), "row -1 is not in this cache"),
    "kept too much": (lambda c: c.keep(0, 3, [0, 1, 2]), "the row holds 5 tokens"),
    "kept backwards": (lambda c: c.keep(0, 0, [1, 0]), "must ascend"),
    "kept in no row": (lambda c: c.keep(7, 0, []), "row 7"),
    "kept from nowhere": (lambda c: c.keep(0, -1, []), "after the first -1"),
    "trimmed below nothing": (lambda c: c.trim(0, -1), "0 empties it"),
    "trimmed in no row": (lambda c: c.trim(2, 0), "row 2"),
}


@pytest.mark.parametrize("case", CACHES)
def test_caches_are_not_misused(case: str) -> None:
    wrong, message = CACHES[case]
    one = model("mistral")
    cache = one.new_cache(2, 16)
    run(one, cache, [[0] * 5])
    with pytest.raises(CacheError, match=message):
        wrong(cache)
    assert [cache.length(row) for row in (0, 1)] == [5, 0]


def test_full_caches_and_contexts() -> None:
    one = model("mistral")
    cache = one.new_cache(1, 8)
    with pytest.raises(CacheError, match="cannot take 9 more: its capacity is 8"):
        run(one, cache, [[0] * 9])
    assert cache.length(0) == 0
    for far in (256, 2**62):
        with pytest.raises(CacheError, match=f"position {far} lies beyond the context of 256"):
            one.forward(batch([[1]], [[far]]), one.new_cache(1, 300))


@pytest.mark.parametrize(
    "sizes", [(2**20, 2**31), (2**30, 64), (1, 2**40), (1, 2**70), (2**70, 1)], ids=str
)
def test_caches_that_no_machine_has(sizes: tuple[int, int]) -> None:
    with pytest.raises(MemoryLimitError, match=r"not enough memory .* smaller context or batch"):
        model("llama").new_cache(*sizes)


def loading(precision: str, change: dict[str, Any], **options: Any) -> CpuModel:
    """A small llama with some of its weights changed: by key, index and value."""
    tensors = dict(weights("llama"))
    for key, (index, value) in change.items():
        tensors[key] = tensors[key].clone()
        tensors[key].view(-1)[index] = value
    source = TensorSource(tensors, "here")
    return CpuModel(architecture("llama"), source, precision, "llama", KernelChoice(**options))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize("key", [EMBEDDING, QUERY, NORM])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_that_are_no_numbers(precision: str, key: str, value: float) -> None:
    with pytest.raises(CheckpointError, match=r"here: .*a weight is not finite"):
        loading(precision, {key: (39, value)})


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_weights_that_have_no_scale(precision: str) -> None:
    with pytest.raises(CheckpointError, match=r"layers\.0\.qkv.*too large for an fp16 scale"):
        loading(precision, {QUERY: (0, 1e30)})
    # Large ones that have one stay numbers; small ones may vanish.
    for value in (1e5, 1e-30):
        assert torch.isfinite(plain(loading(precision, {QUERY: (0, value)}), [1, 2, 3])[0]).all()


def test_other_types_of_weights_are_converted() -> None:
    exact = plain(loading("fp32", {}), [1, 2, 3])[0]
    wide = {key: tensor.double() for key, tensor in weights("llama").items()}
    source = TensorSource(wide, "here")
    assert torch.equal(
        plain(CpuModel(architecture("llama"), source, "fp32", ""), [1, 2, 3])[0], exact
    )
    wide[QUERY][0, 0] = 1e300
    with pytest.raises(CheckpointError, match="not finite"):
        CpuModel(architecture("llama"), source, "fp32", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int3"}, "unknown precision 'int3'.*Did you mean 'int8'"),
        ({"precision": "fp16"}, "unknown precision 'fp16'"),
        ({"level": "avx"}, "unknown level 'avx'.*Did you mean 'avx2'"),
        ({"group": 48}, "group is 48; it must be 32, 64 or 128"),
        ({"group": -1}, "group is -1; it must be 32"),
        ({"threads": 0}, "0 threads were asked for"),
        ({"threads": 10**6}, "1000000 threads were asked for"),
    ],
    ids=str,
)
def test_choices_that_there_are_not(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loading(**({"precision": "int8", "change": {}} | options))


def test_numbers_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (0, -1, 10**6):
        monkeypatch.setattr("forerun.models.cpu.threads._asked", [])
        set_num_threads(count)
        with pytest.raises(ConfigError, match=f"{count} threads were asked for"):
            shared_pool()
    monkeypatch.setattr("forerun.models.cpu.threads._asked", [])
    for value in ("all", "-1", "1.5"):
        monkeypatch.setenv("FORERUN_THREADS", value)
        with pytest.raises(ConfigError, match=rf"FORERUN_THREADS is '{value}'"):
            shared_pool()
    monkeypatch.setenv("FORERUN_THREADS", "1")
    assert shared_pool().threads == 1


def test_a_thread_that_the_system_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise RuntimeError("Resource temporarily unavailable")

    monkeypatch.setattr("forerun._native.kernels.ThreadPool", refuse)
    thread_pool.cache_clear()
    with pytest.raises(ConfigError, match=r"1 threads cannot be started here \(Resource"):
        thread_pool(1)


def test_torch_may_have_more_threads_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.models.cpu.threads._asked", [])
    monkeypatch.delenv("FORERUN_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(64)
    try:
        assert 1 <= shared_pool().threads <= 64
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_values_that_are_no_numbers_stay_with_those_who_see_them(precision: str) -> None:
    """A token whose values overflow spoils neither the tokens before it nor the next request."""
    one = model("llama", precision, "", 1)
    cache = one.new_cache(1, 40)
    ids = torch.arange(9)[None]
    alone = run(one, cache, ids[:, :5]).logits
    cache.trim(0, 0)
    hidden = torch.full((1, 9, one.hidden_size), torch.nan)
    run(one, cache, ids, hidden_in=hidden)
    cache.trim(0, 0)
    again = run(one, cache, ids[:, :5]).logits
    assert torch.equal(alone, again)
    run(one, cache, ids[:, 5:6], hidden_in=hidden[:, :1])
    after = run(one, cache, ids[:, 6:7]).logits
    assert after.isnan().all()


@pytest.mark.parametrize("pool", [1, 2])
def test_several_threads_may_call_at_once(pool: int) -> None:
    """One model or two, on threads of their own caches, give what each gives alone."""
    if pool > (torch.multiprocessing.cpu_count() or 1):
        pytest.skip("one core")
    models = [model("qwen3", "bf16", "", pool), model("llama", "int8", "", pool)]
    text = [index * 7 % 40 for index in range(40)]
    wanted = [plain(one, text)[0] for one in models]
    found: list[bool] = []

    def work(index: int) -> None:
        one = models[index % 2]
        for _ in range(5):
            found.append(torch.equal(plain(one, text)[0], wanted[index % 2]))

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [True] * 20


@pytest.mark.parametrize("out", [torch.empty(2, 32).half(), torch.empty(32, 2).t()])
def test_what_is_written_into_is_never_a_copy(out: Tensor) -> None:
    """A copy of another type or order would be filled and thrown away, with nobody told."""
    kernels = _native.kernels
    probs, keys, nodes = torch.full((2, 32), 1 / 32), [(1, 3), (2, 3)], [[0], [1]]
    with pytest.raises((TypeError, ValueError)):
        kernels.draw_siblings(probs.numpy(), keys, nodes, False, out.numpy())
    with pytest.raises((TypeError, ValueError)):
        kernels.warp_rows(probs.numpy(), out.numpy(), 1.0, 0, 1.0, 0.0)
    one = model("qwen3")
    size = one.vocab_size
    wide = torch.empty(2, size).half() if out.dtype == torch.half else torch.empty(size, 2).t()
    states = torch.zeros(2, one.hidden_size).numpy()
    with pytest.raises(TypeError):
        one._decoder.lm_head(shared_pool(), states, wide.numpy())
