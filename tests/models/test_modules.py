"""Modules composed to a draft head: the same on torch and on the kernels, where the result for a token
depends on its path alone, bit for bit."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.contracts import Ability, Layer, LayerShape, Modules
from forerun.core import Batch, Tree
from forerun.errors import CacheError, CheckpointError, ConfigError
from forerun.models.cpu.modules import CpuModules
from forerun.models.cpu.threads import thread_pool
from forerun.models.modules import ComposedLayer, TorchModules, modules_for
from tests.helpers.kernel_models import LEVELS, PRECISIONS, check_levels, model, needs_kernels
from tests.helpers.toy_head import SHAPES, ToyHead, head_weights

pytestmark = needs_kernels
HIDDEN, TEXT, CAPACITY = 41, 40, 64
THREADS = (1, 2) if (os.cpu_count() or 1) > 1 else (1,)
TREE = Tree((-1, -1, 0, 1, 1, 2, 4, -1))
# Of the largest value, where weights are rounded.
NEAR = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.05, "int4": 0.6}
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_precision = pytest.mark.parametrize("precision", PRECISIONS)


def on_kernels(precision: str, threads: int = 1, level: str = "") -> CpuModules:
    return CpuModules(thread_pool(threads), precision, level=level)


def head_on(modules: Modules, shape: str) -> ToyHead:
    return ToyHead(modules, SHAPES[shape], head_weights(shape, HIDDEN))


def inputs(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings and hidden states [count, HIDDEN]."""
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(2, count, HIDDEN, generator=generator)
    return both[0], both[1]


def run(
    head: ToyHead, cache: Any, rows: dict[int, tuple[Tensor, Tensor]], trees: Any = None
) -> list[Tensor]:
    """Append the inputs of some rows to a cache; the outputs of each row."""
    lists = [[0] * len(embeddings) for embeddings, _ in rows.values()]
    batch = Batch.after(cache, list(rows), lists, trees=trees)
    dtype = next(iter(rows.values()))[0].dtype
    states = torch.zeros(2, len(rows), batch.width, HIDDEN, dtype=dtype)
    for index, (embeddings, hidden) in enumerate(rows.values()):
        states[:, index, : len(hidden)] = torch.stack((embeddings, hidden))
    out = head(states[0], states[1], batch, cache)
    assert out.shape == (len(rows), batch.width, HIDDEN)
    return [out[index, : len(tokens)] for index, tokens in enumerate(lists)]


def token_by_token(head: ToyHead, embeddings: Tensor, hidden: Tensor) -> Tensor:
    cache = head.new_cache(1, CAPACITY)
    steps = zip(embeddings.split(1), hidden.split(1), strict=True)
    return torch.cat([run(head, cache, {0: step})[0] for step in steps])


def grown(head: ToyHead, cache: Any, row: int) -> Tensor:
    """A text of `TEXT` tokens, then the tree behind it in two passes; the outputs of its nodes."""
    embeddings, hidden = inputs(TEXT + len(TREE))
    run(head, cache, {row: (embeddings[:TEXT], hidden[:TEXT])})
    nodes = []
    for first, end in ((0, 3), (3, len(TREE))):
        new = slice(TEXT + first, TEXT + end)
        tree = Tree(TREE.parents[:end])
        nodes += run(head, cache, {row: (embeddings[new], hidden[new])}, [tree])
    return torch.cat(nodes)


def paths() -> Iterator[tuple[int, list[int]]]:
    """Each node with the indices of the inputs on its path."""
    for node in range(len(TREE)):
        path, at = [], node
        while at >= 0:
            path.append(TEXT + at)
            at = TREE.parents[at]
        yield node, [*range(TEXT), *path[::-1]]


@every_shape
def test_torch_and_kernels_agree(shape: str) -> None:
    """Over chunks of ragged rows, and over a tree."""
    heads = [
        head_on(TorchModules(torch.device("cpu"), torch.float32), shape),
        head_on(on_kernels("fp32", THREADS[-1]), shape),
    ]
    caches = [head.new_cache(3, CAPACITY) for head in heads]
    for chunks in ({0: 7, 2: 20}, {1: 9, 0: 1}, {2: 3, 0: 12, 1: 1}):
        rows = {row: inputs(count, row) for row, count in chunks.items()}
        expected, found = (run(*both, rows) for both in zip(heads, caches, strict=True))
        for wanted, got in zip(expected, found, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=2e-5)
    nodes = [grown(head, head.new_cache(1, CAPACITY), 0) for head in heads]
    torch.testing.assert_close(nodes[1], nodes[0], rtol=0, atol=2e-5)


@every_shape
@every_precision
def test_precisions_come_near(shape: str, precision: str) -> None:
    embeddings, hidden = inputs(20)
    wanted = token_by_token(
        head_on(TorchModules(torch.device("cpu"), torch.float64), shape),
        embeddings.double(),
        hidden.double(),
    )
    found = token_by_token(head_on(on_kernels(precision), shape), embeddings, hidden)
    assert (found - wanted).abs().max() < NEAR[precision] * wanted.abs().max()


@every_shape
@every_precision
@pytest.mark.parametrize("threads", THREADS)
def test_chunks_batches_and_threads_change_nothing(
    shape: str, precision: str, threads: int
) -> None:
    rng = random.Random(f"{shape}{precision}{threads}")
    texts = {row: inputs(TEXT, row) for row in range(3)}
    expected = {
        row: token_by_token(head_on(on_kernels(precision), shape), *text)
        for row, text in texts.items()
    }
    head = head_on(on_kernels(precision, threads), shape)
    cache = head.new_cache(3, CAPACITY)
    done = dict.fromkeys(texts, 0)
    while min(done.values()) < TEXT:
        unfinished = [row for row in texts if done[row] < TEXT]
        rows = {}
        for row in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            new = slice(done[row], done[row] + rng.randint(1, 25))
            rows[row] = (texts[row][0][new], texts[row][1][new])
        for row, out in zip(rows, run(head, cache, rows), strict=True):
            assert torch.equal(out, expected[row][done[row] : done[row] + len(out)])
            done[row] += len(out)


@every_precision
@pytest.mark.parametrize("count", [1, 30])
def test_a_normed_product_is_its_parts_bit_for_bit(precision: str, count: int) -> None:
    modules, hidden = on_kernels(precision, THREADS[-1]), inputs(count)[0]
    weight, norm = inputs(50, seed=1)[0], inputs(1, seed=2)[0][0]
    alone = modules.linear(weight)(modules.norm(norm, eps=1e-3)(hidden))
    product = modules.linear(weight, norm=norm, eps=1e-3)
    assert torch.equal(product(hidden), alone)
    with pytest.raises(CheckpointError, match="norm has a shape that does not fit"):
        modules.linear(weight, norm=norm[1:])


@every_shape
@every_precision
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("normed_residual", [False, True])
def test_a_layer_is_its_parts_bit_for_bit(
    shape: str, precision: str, threads: int, normed_residual: bool
) -> None:
    """Of two inputs, over ragged rows and over a tree."""
    modules, generator = on_kernels(precision, threads), torch.Generator().manual_seed(7)
    whole = LayerShape(
        **vars(SHAPES[shape]), activation="gelu", inputs=2, normed_residual=normed_residual
    )
    weights = head_weights(shape, HIDDEN)
    weights["qkv"] = torch.randn(len(weights["qkv"]), 2 * HIDDEN, generator=generator) / 9
    weights["down_bias"] = torch.randn(HIDDEN, generator=generator)
    weights["input_norm.0"] = torch.rand(HIDDEN, generator=generator)
    if normed_residual:
        weights["input_norm.1"] = torch.rand(HIDDEN, generator=generator)
    layers: list[Layer] = [modules.layer(whole, weights), ComposedLayer(modules, whole, weights)]
    caches = [layer.new_cache(2, CAPACITY) for layer in layers]

    def check(counts: dict[int, int], trees: list[Tree] | None = None) -> None:
        batch = Batch.after(
            caches[0], list(counts), [[0] * n for n in counts.values()], trees=trees
        )
        states = [torch.randn(len(counts), batch.width, HIDDEN, generator=generator) for _ in "12"]
        found, wanted = (
            layer(states, batch, cache) for layer, cache in zip(layers, caches, strict=True)
        )
        for row, count in enumerate(counts.values()):
            assert torch.equal(found[row, :count], wanted[row, :count])

    check({0: 5, 1: 19})
    check({1: 2, 0: 1})
    check({0: len(TREE)}, [TREE])


@every_shape
@every_precision
def test_nodes_of_trees_are_their_paths(shape: str, precision: str) -> None:
    head = head_on(on_kernels(precision, THREADS[-1]), shape)
    cache = head.new_cache(2, CAPACITY)
    nodes = grown(head, cache, 1)
    embeddings, hidden = inputs(TEXT + len(TREE))
    for node, path in paths():
        alone = token_by_token(
            head_on(on_kernels(precision), shape), embeddings[path], hidden[path]
        )
        assert torch.equal(nodes[node], alone[-1]), node
    # What is kept is what a fresh prefill holds.
    cache.keep(1, TEXT, [1, 4])
    more = inputs(1, seed=5)
    kept = [*range(TEXT), TEXT + 1, TEXT + 4]
    fresh = head.new_cache(1, CAPACITY)
    run(head, fresh, {0: (embeddings[kept], hidden[kept])})
    assert torch.equal(run(head, cache, {1: more})[0], run(head, fresh, {0: more})[0])


@every_precision
def test_levels_agree(precision: str) -> None:
    embeddings, hidden = inputs(20)
    heads = [head_on(on_kernels(precision, level=level), "window") for level in LEVELS]
    check_levels(
        precision, [run(h, h.new_cache(1, 20), {0: (embeddings, hidden)})[0] for h in heads]
    )


@every_precision
def test_modules_come_in_the_targets_precision(precision: str) -> None:
    target = model("llama", precision)
    assert Ability.MODULES in target.abilities
    weight = torch.randn(50, HIDDEN, generator=torch.Generator().manual_seed(3))
    found = modules_for(target).linear(weight)(inputs(5)[0])
    # int4 costs a draft more than it saves, but in its layers.
    own = on_kernels("int8" if precision == "int4" else precision)
    assert torch.equal(found, own.linear(weight)(inputs(5)[0]))
    shape = LayerShape(**vars(SHAPES["plain"]))
    layers = [
        each.layer(shape, head_weights("plain", HIDDEN))
        for each in (modules_for(target), on_kernels(precision))
    ]
    hidden = inputs(5)[1][None]
    outs = []
    for layer in layers:
        cache = layer.new_cache(1, 5)
        outs.append(layer([hidden], Batch.after(cache, [0], [[0] * 5]), cache))
    assert torch.equal(*outs)


def test_a_head_stands_on_its_target() -> None:
    """Embeddings, hidden states and logits are the target's, in any number at once."""
    target = model("llama", "bf16", threads=THREADS[-1])
    hidden_size = target.hidden_size
    weights = head_weights("rotary", hidden_size)
    head = ToyHead(modules_for(target), SHAPES["rotary"], weights)
    ids = [3, 1, 4, 1, 5, 9, 2, 6]

    def logits(chunks: list[list[int]]) -> Tensor:
        own, cache, rows = target.new_cache(1, 20), head.new_cache(1, 20), []
        for chunk in chunks:
            batch = Batch.after(own, [0], [chunk], hidden_layers=(target.num_layers,))
            states = target.forward(batch, own).hidden[target.num_layers]
            embeddings = target.embed(torch.tensor([chunk]))
            out = head(embeddings, states, Batch.after(cache, [0], [chunk]), cache)
            rows.append(target.lm_head(target.final_norm(out))[0])
        return torch.cat(rows)

    assert torch.equal(logits([ids]), logits([[token] for token in ids]))


def test_what_does_not_fit_is_refused() -> None:
    modules, weights = on_kernels("int8"), head_weights("plain", HIDDEN)
    with pytest.raises(CheckpointError, match="bias has a shape that does not fit"):
        modules.linear(weights["fuse"], torch.zeros(3))
    with pytest.raises(CheckpointError, match="as many biases"):
        modules.norm(torch.ones(4), torch.ones(3))
    with pytest.raises(CheckpointError, match="do not fit the heads"):
        modules.attention(SHAPES["rotary"], weights)
    for name in ("fuse", "qkv", "input_norm"):
        spoiled = {key: tensor.clone() for key, tensor in weights.items()}
        spoiled[name].flatten()[3] = torch.nan
        with pytest.raises(CheckpointError, match="not finite"):
            ToyHead(modules, SHAPES["plain"], spoiled)
    head = head_on(modules, "plain")
    with pytest.raises(ConfigError, match="x has a shape that does not fit"):
        head.fuse(torch.zeros(2, HIDDEN))
    cache = head.new_cache(1, 4)
    with pytest.raises(CacheError, match="its capacity is 4"):
        run(head, cache, {0: inputs(5)})
    assert cache.length(0) == 0
    with pytest.raises(ConfigError, match="another model"):
        run(head, head_on(modules, "rotary").new_cache(1, 9), {0: inputs(5)})
