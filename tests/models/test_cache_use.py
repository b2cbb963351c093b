"""Rollback, ragged batches and partial layers change nothing but the work done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends import BACKENDS, on_both
from tiny_models import FAMILIES, NATIVE, close, run, tokens, tree_inputs

from forerun.errors import CacheError, ConfigError, UnsupportedModelError
from forerun.models.cpu import CpuCache

ADAPTED = [name for name in FAMILIES if name not in NATIVE]
# transformers keeps norms and rotations in float32 even in float64; see each adapter's tolerance.
TOLERANCE = {"gemma2": 1e-4, "gpt_neox": 1e-5}


def load_exact(load: Any, name: str, backend: str) -> tuple[Any, float]:
    """A model, and how near results must be that are one: the kernels' are, bit for bit."""
    if backend == "kernels":
        return load(name, "fp32", backend), 0.0
    return load(name, "fp64"), TOLERANCE.get(name, 1e-10)


@on_both(FAMILIES)
def test_kept_path_equals_a_fresh_prefill(name: str, backend: str, load: Any) -> None:
    model, tolerance = load_exact(load, name, backend)
    prompt, nodes = tokens(1, 9), tokens(1, 10, seed=1)
    cache = model.new_cache(2, 32)
    run(model, cache, prompt)
    places, mask, paths = tree_inputs(9)
    model.forward(nodes, places, cache.view([0]), tree_mask=mask)
    path = paths[9]
    cache.keep(0, 9, path)
    assert cache.length(0) == 9 + len(path)
    line = torch.cat((prompt, nodes[:, path]), dim=1)
    fresh = model.new_cache(1, 32)
    run(model, fresh, line)
    for mine, own in zip(keys_of(model, cache, 0), keys_of(model, fresh, 0), strict=True):
        close(mine, own, tolerance)
    follow = tokens(1, 3, seed=2)
    after = run(model, cache, follow, line.shape[1]).logits
    close(after, run(model, fresh, follow, line.shape[1]).logits, tolerance)


def keys_of(model: Any, cache: Any, row: int) -> list[Any]:
    """Keys and values of all layers of a row, filled slots only; the kernels keep theirs to themselves."""
    held = cache.length(row)
    if isinstance(cache, CpuCache):
        return []
    if hasattr(cache, "caches"):
        layers = cache.caches[row].layers
        return [t[0, :, :held] for layer in layers for t in (layer.keys, layer.values)]
    return [t[row, :, :held] for t in (*cache.keys, *cache.values)]


@on_both(FAMILIES)
def test_trim_then_go_on_another_way(name: str, backend: str, load: Any) -> None:
    model, tolerance = load_exact(load, name, backend)
    ids = tokens(1, 14)
    cache = model.new_cache(1, 32)
    run(model, cache, ids[:, :8])
    run(model, cache, tokens(1, 5, seed=3), 8)
    cache.trim(0, 8)
    found = run(model, cache, ids[:, 8:], 8).logits
    wanted = run(model, model.new_cache(1, 32), ids).logits[:, 8:]
    close(found, wanted, tolerance)


@on_both(FAMILIES)
def test_ragged_batch_equals_single_rows(name: str, backend: str, load: Any) -> None:
    model, tolerance = load_exact(load, name, backend)
    ids = tokens(3, 16)
    prompts, counts = [4, 9, 6], [5, 0, 2]
    cache = model.new_cache(4, 32)
    places = torch.full((3, 9), -1)
    for row, length in enumerate(prompts):
        places[row, :length] = torch.arange(length)
    first = model.forward(ids[:, :9], places, cache.view([3, 0, 2]), logits_for="last").logits
    more, at = torch.zeros(3, 5, dtype=torch.int64), torch.full((3, 5), -1)
    for row, (start, count) in enumerate(zip(prompts, counts, strict=True)):
        more[row, :count] = ids[row, start : start + count]
        at[row, :count] = torch.arange(start, start + count)
    second = model.forward(more, at, cache.view([3, 0, 2])).logits
    assert [cache.length(row) for row in (3, 0, 2)] == [9, 9, 8]
    for row, (start, count) in enumerate(zip(prompts, counts, strict=True)):
        line = ids[row : row + 1, : start + count]
        wanted = run(model, model.new_cache(1, 32), line).logits[0]
        close(first[row, 0], wanted[start - 1], tolerance)
        close(second[row, :count], wanted[start:], tolerance)
    assert torch.isfinite(second).all()


@on_both(FAMILIES)
def test_ragged_trees_equal_single_trees(name: str, backend: str, load: Any) -> None:
    model, tolerance = load_exact(load, name, backend)
    ids, nodes = tokens(2, 9), tokens(2, 10, seed=1)
    prompts, sizes = [9, 4], [3, 10]
    cache = model.new_cache(2, 32)
    places, masks = torch.full((2, 10), -1), torch.zeros(2, 10, 10, dtype=torch.bool)
    for row, (start, size) in enumerate(zip(prompts, sizes, strict=True)):
        at = torch.arange(start)[None]
        model.forward(ids[row : row + 1, :start], at, cache.view([row]))
        own, mask, _ = tree_inputs(start)
        masks[row, :, size:] = True  # Padding is seen by none, whatever the mask says.
        places[row, :size], masks[row, :size, :size] = own[0, :size], mask[0, :size, :size]
    found = model.forward(nodes, places, cache.view([0, 1]), tree_mask=masks).logits
    for row, (start, size) in enumerate(zip(prompts, sizes, strict=True)):
        single = model.new_cache(1, 32)
        run(model, single, ids[row : row + 1, :start])
        inputs = (nodes[row : row + 1, :size], places[row : row + 1, :size], single.view([0]))
        mask = masks[row : row + 1, :size, :size]
        wanted = model.forward(*inputs, tree_mask=mask).logits
        close(found[row, :size], wanted[0], tolerance)
    assert torch.isfinite(found).all()


@on_both(NATIVE)
def test_some_layers_then_the_rest_equal_all(name: str, backend: str, load: Any) -> None:
    model, tolerance = load_exact(load, name, backend)
    ids = tokens(1, 10)
    cache, whole = model.new_cache(1, 16), model.new_cache(1, 16)
    wanted = run(model, whole, ids).logits
    low = run(model, cache, ids, layers=range(1), hidden_layers=(1,))
    assert low.logits is None
    assert cache.length(0) == 0
    high = run(model, cache, ids, layers=range(1, 3), hidden_in=low.hidden[1])
    close(high.logits, wanted, tolerance)
    assert cache.length(0) == 10
    for mine, own in zip(keys_of(model, cache, 0), keys_of(model, whole, 0), strict=True):
        close(mine, own, tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_that_are_not_there_are_refused(backend: str, load: Any) -> None:
    model, ids = load("llama", backend=backend), tokens(1, 2)
    cache = model.new_cache(1, 8)
    with pytest.raises(ConfigError, match="has 3"):
        run(model, cache, ids, layers=range(1, 4), hidden_in=torch.zeros(1, 2, 24))
    with pytest.raises(ConfigError, match="need hidden_in"):
        run(model, cache, ids, layers=range(1, 3))
    with pytest.raises(ConfigError, match=r"hidden_layers \[3\] are not run"):
        run(model, cache, ids, layers=range(2), hidden_layers=(3,))
    assert cache.length(0) == 0


@on_both(["llama", "gpt2", "opt"])
def test_full_caches_and_contexts_are_refused(name: str, backend: str, load: Any) -> None:
    model = load(name, backend=backend)
    with pytest.raises(CacheError, match=r"row 0 holds 0 tokens and cannot take 5 .* 4"):
        run(model, model.new_cache(1, 4), tokens(1, 5))
    with pytest.raises(CacheError, match="position 64 lies beyond the context"):
        run(model, model.new_cache(1, 80), tokens(1, 65))


@pytest.mark.parametrize("name", ADAPTED)
def test_the_adapter_refuses_what_it_cannot_do(name: str, load: Any) -> None:
    model, ids = load(name), tokens(1, 2)
    cache = model.new_cache(1, 8)
    for options in ({"layers": range(1)}, {"hidden_in": torch.zeros(1, 2, 24)}):
        with pytest.raises(UnsupportedModelError, match="cannot run some of the layers"):
            run(model, cache, ids, **options)
    with pytest.raises(UnsupportedModelError, match="hidden states 0 to 2"):
        run(model, cache, ids, hidden_layers=(3,))
    with pytest.raises(CacheError, match="they must ascend"):
        cache.keep(0, 0, [1])
    with pytest.raises(CacheError, match="name rows 0 to 0"):
        cache.view([1])
    with pytest.raises(CacheError, match="0 empties it"):
        cache.trim(0, -1)


@on_both(["mistral"])
def test_nodes_of_a_tree_may_come_in_any_depth_order(name: str, backend: str, load: Any) -> None:
    """A window is cut for the node that looks furthest back, wherever it stands in the pass."""
    model, tolerance = load_exact(load, name, backend)
    prompt, nodes = tokens(1, 9), tokens(1, 10, seed=1)
    whole, parts = model.new_cache(1, 32), model.new_cache(1, 32)
    places, mask, _ = tree_inputs(9)
    for cache in (whole, parts):
        run(model, cache, prompt)
    wanted = model.forward(nodes, places, whole.view([0]), tree_mask=mask).logits
    first = [0, 1, 2, 5]
    model.forward(
        nodes[:, first], places[:, first], parts.view([0]), tree_mask=mask[:, first][:, :, first]
    )
    rest = [7, 8, 9, 3]  # Node 3 is the shallowest of them and comes last.
    seen = mask[:, rest][:, :, [*first, *rest]]
    found = model.forward(nodes[:, rest], places[:, rest], parts.view([0]), tree_mask=seen).logits
    close(found, wanted[:, rest], tolerance)
