"""Rollback, ragged batches and partial layers change nothing but the work done."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forerun import _native
from forerun.core import Batch, Tree
from forerun.errors import CacheError, ConfigError, UnsupportedModelError
from forerun.models.cpu import CpuCache
from forerun.testing import ToyModel
from tests.helpers.backends import BACKENDS, on_both
from tests.helpers.forwards import run
from tests.helpers.layered import LayeredToyModel
from tests.helpers.tiny_models import FAMILIES, NATIVE, PATHS, TREE, VOCAB, close, tokens

ADAPTED = [name for name in FAMILIES if name not in NATIVE]
# transformers keeps norms and rotations in float32 even in float64; see each adapter's tolerance.
TOLERANCE = {"gemma2": 1e-4, "gpt_neox": 1e-5, "gpt_neo": 1e-4}


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
    run(model, cache, nodes, trees=[TREE])
    path = PATHS[9]
    cache.keep(0, 9, path)
    assert cache.length(0) == 9 + len(path)
    line = torch.cat((prompt, nodes[:, path]), dim=1)
    fresh = model.new_cache(1, 32)
    run(model, fresh, line)
    for mine, own in zip(keys_of(model, cache, 0), keys_of(model, fresh, 0), strict=True):
        close(mine, own, tolerance)
    follow = tokens(1, 3, seed=2)
    after = run(model, cache, follow).logits
    close(after, run(model, fresh, follow).logits, tolerance)


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
    run(model, cache, tokens(1, 5, seed=3))
    cache.trim(0, 8)
    found = run(model, cache, ids[:, 8:]).logits
    wanted = run(model, model.new_cache(1, 32), ids).logits[:, 8:]
    close(found, wanted, tolerance)


@on_both(FAMILIES)
def test_ragged_batch_equals_single_rows(name: str, backend: str, load: Any) -> None:
    model, tolerance = load_exact(load, name, backend)
    ids = tokens(3, 16)
    prompts, counts, rows = [4, 9, 6], [5, 3, 2], [3, 0, 2]
    lines = ids.tolist()
    cache = model.new_cache(4, 32)
    texts = [line[:length] for line, length in zip(lines, prompts, strict=True)]
    first = run(model, cache, texts, rows, logits_for="last").logits
    more = [
        line[start : start + count]
        for line, start, count in zip(lines, prompts, counts, strict=True)
    ]
    second = run(model, cache, more, rows).logits
    assert [cache.length(row) for row in rows] == [9, 12, 8]
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
    texts = [line[:start] for line, start in zip(ids.tolist(), prompts, strict=True)]
    drafts = [line[:size] for line, size in zip(nodes.tolist(), sizes, strict=True)]
    trees = [Tree(TREE.parents[:size]) for size in sizes]
    run(model, cache, texts)
    found = run(model, cache, drafts, trees=trees).logits
    for row, size in enumerate(sizes):
        single = model.new_cache(1, 32)
        run(model, single, [texts[row]])
        wanted = run(model, single, [drafts[row]], trees=[trees[row]]).logits
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
    with pytest.raises(ConfigError, match=r"the shape \[1, 2, 7\]; .* needs \[1, 2, 24\]"):
        run(model, cache, ids, hidden_in=torch.zeros(1, 2, 7))
    assert cache.length(0) == 0


@on_both(["llama", "gpt2", "opt"])
def test_full_caches_and_contexts_are_refused(name: str, backend: str, load: Any) -> None:
    model = load(name, backend=backend)
    with pytest.raises(CacheError, match=r"row 0 holds 0 tokens and cannot take 5 .* 4"):
        run(model, model.new_cache(1, 4), tokens(1, 5))
    with pytest.raises(CacheError, match="position 64 lies beyond the context"):
        run(model, model.new_cache(1, 80), tokens(1, 65))


@pytest.mark.parametrize("name", ADAPTED)
def test_the_adapter_shows_what_enters_the_final_norm(name: str, load: Any) -> None:
    """Where norm and output head are all that follows."""
    model, ids = load(name), tokens(1, 5)
    if name == "gemma2":
        with pytest.raises(ConfigError, match="no output head that can be run alone"):
            run(model, model.new_cache(1, 8), ids, hidden_layers=(3,))
        return
    out = run(model, model.new_cache(1, 8), ids, hidden_layers=(2, 3))
    close(model.lm_head(model.final_norm(out.hidden[3])), out.logits)
    assert not torch.equal(out.hidden[2], out.hidden[3])


@pytest.mark.parametrize("name", ADAPTED)
def test_the_adapter_refuses_what_it_cannot_do(name: str, load: Any) -> None:
    model, ids = load(name), tokens(1, 2)
    cache = model.new_cache(1, 8)
    for options in ({"layers": range(1)}, {"hidden_in": torch.zeros(1, 2, 24)}):
        with pytest.raises(UnsupportedModelError, match="cannot run some of the layers"):
            run(model, cache, ids, **options)
    with pytest.raises(UnsupportedModelError, match="hidden states 0 to 3"):
        run(model, cache, ids, hidden_layers=(4,))
    with pytest.raises(CacheError, match="they must ascend"):
        cache.keep(0, 0, [1])
    with pytest.raises(CacheError, match="it has rows 0 to 0"):
        run(model, cache, ids, [1])
    with pytest.raises(CacheError, match="0 empties it"):
        cache.trim(0, -1)


@on_both(["mistral"])
def test_nodes_of_a_tree_may_come_in_any_depth_order(name: str, backend: str, load: Any) -> None:
    """A window is cut for the node that looks furthest back, wherever it stands in the pass."""
    model, tolerance = load_exact(load, name, backend)
    prompt, nodes = tokens(1, 9), tokens(1, 10, seed=1)
    whole, parts = model.new_cache(1, 32), model.new_cache(1, 32)
    for cache in (whole, parts):
        run(model, cache, prompt)
    wanted = run(model, whole, nodes, trees=[TREE]).logits
    # Node 3 is the shallowest of the second pass and comes last.
    order = [0, 1, 2, 5, 7, 8, 9, 3]
    tree = Tree(tuple(order.index(TREE.parents[node]) if node else -1 for node in order))
    run(model, parts, nodes[:, order[:4]], trees=[Tree(tree.parents[:4])])
    found = run(model, parts, nodes[:, order[4:]], trees=[tree]).logits
    close(found, wanted[:, order[4:]], tolerance)


MISUSED: dict[str, Any] = {
    "no rows": lambda model, cache: model.new_cache(0, 8),
    "full": lambda model, cache: run(model, cache, tokens(1, 9)),
    "beyond the context": lambda model, cache: run(model, model.new_cache(1, 80), tokens(1, 65)),
    "no such row": lambda model, cache: run(model, cache, tokens(1, 1), [2]),
    "no such row to run": lambda model, cache: model.forward(Batch([2], [[1]], [[0]]), cache),
    "the length of no row": lambda model, cache: cache.length(-1),
    "a row to keep that is not there": lambda model, cache: cache.keep(2, 0, []),
    "a row to trim that is not there": lambda model, cache: cache.trim(2, 0),
    "a gap": lambda model, cache: model.forward(Batch([0], [[1]], [[4]]), cache),
    "a tree of more than is held": lambda model, cache: run(
        model, cache, tokens(1, 1), trees=[Tree((-1, 0, 0, 0, 0))]
    ),
    "a path that descends": lambda model, cache: cache.keep(0, 0, [1, 0]),
    "a path that is not held": lambda model, cache: cache.keep(0, 1, [0, 4]),
    "more kept than held": lambda model, cache: cache.keep(0, 4, []),
    "a negative length": lambda model, cache: cache.trim(0, -1),
}


@pytest.mark.parametrize("case", MISUSED)
def test_every_kind_of_cache_says_the_same(case: str, load: Any) -> None:
    toys = [kind(VOCAB, max_context=64) for kind in (ToyModel, LayeredToyModel)]
    loaded = [load("llama"), load("gpt_neox"), *toys]
    if _native.AVAILABLE:
        loaded.append(load("llama", backend="kernels"))
    said = set()
    for model in loaded:
        cache = model.new_cache(2, 8)
        run(model, cache, tokens(1, 3))
        with pytest.raises(CacheError) as caught:
            MISUSED[case](model, cache)
        said.add(str(caught.value))
    assert len(said) == 1


LAYERED: dict[str, Any] = {
    "layers of different lengths": lambda model, cache: run(model, cache, tokens(1, 1)),
    "layers that are not there": lambda model, cache: cache.trim(0, 1, range(2, 4)),
}


@pytest.mark.parametrize("case", LAYERED)
def test_caches_with_layers_of_their_own_say_the_same(case: str, load: Any) -> None:
    loaded = [load("llama"), LayeredToyModel(VOCAB)]
    if _native.AVAILABLE:
        loaded.append(load("llama", backend="kernels"))
    said = set()
    for model in loaded:
        cache = model.new_cache(2, 8)
        run(model, cache, tokens(1, 3), layers=range(1))
        with pytest.raises(CacheError) as caught:
            LAYERED[case](model, cache)
        said.add(str(caught.value))
    assert len(said) == 1
