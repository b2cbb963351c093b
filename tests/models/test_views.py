"""Forwards that read the first and the newest tokens of their text alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forerun.core import BLOCK_SIZE, Tree, View
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.models import Checkpoint, load_model
from forerun.models.block_choice import BlockChoice
from forerun.models.cpu.cache import CpuCache
from forerun.models.cpu.model import CpuModel
from forerun.placement import Placement
from tests.helpers.backends import needs_kernels, on_both
from tests.helpers.forwards import run
from tests.helpers.kernel_models import PRECISIONS
from tests.helpers.kernel_models import model as kernel_model
from tests.helpers.tiny_models import (
    LEAF_PATHS,
    NATIVE,
    TREE,
    close,
    random_model,
    tiny_config,
    tokens,
)

VIEW = View(2, 4)
LENGTH = 20


def seen(length: int, view: View) -> torch.Tensor:
    """Bool [length, length]: which positions each position reads."""
    at = torch.arange(length)
    near = at[None, :] > at[:, None] - view.window
    return (at[None, :] <= at[:, None]) & (near | (at[None, :] < view.sinks))


def exact(load: Any, name: str, backend: str) -> tuple[Any, float]:
    """A model, and how far results may lie apart: not at all on the kernels."""
    if backend == "kernels":
        return load(name, "fp32", backend), 0.0
    return load(name, "fp64"), 1e-10


@on_both(["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("view", [VIEW, View(0, 3), View(3, 1), View(5, 64)], ids=str)
def test_a_view_is_a_mask(name: str, backend: str, view: View, load: Any, reference: Any) -> None:
    """Token by token, in parts that are read apart, as transformers with a mask of its own."""
    ids = tokens(1, LENGTH)
    mask = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~seen(LENGTH, view), -torch.inf)
    with torch.no_grad():
        wanted = reference(name)(input_ids=ids, attention_mask=mask, use_cache=False).logits
    model, _ = exact(load, name, backend)
    cache = model.new_cache(1, 32)
    for token in range(LENGTH):
        found = run(model, cache, ids[:, token : token + 1], view=view).logits
        close(found[0, 0].float(), wanted[0, token])


@on_both(NATIVE)
def test_chunks_trees_and_ragged_rows_read_the_same(name: str, backend: str, load: Any) -> None:
    """Whatever is run together, each token reads what its own position and path say."""
    model, tolerance = exact(load, name, backend)
    prompts = [tokens(1, length, seed=length)[0].tolist() for length in (13, 3, 7)]
    nodes = tokens(3, len(TREE), seed=1).tolist()
    cache, rows = model.new_cache(4, 40), [3, 0, 2]
    run(model, cache, prompts, rows, view=VIEW)
    logits = run(model, cache, nodes, rows, trees=[TREE] * 3, view=VIEW).logits
    for index, prompt in enumerate(prompts):
        alone = model.new_cache(1, 40)
        for token in prompt:
            run(model, alone, [[token]], view=VIEW)
        for path in LEAF_PATHS:
            alone.trim(0, len(prompt))
            for node in path:
                wanted = run(model, alone, [[nodes[index][node]]], view=VIEW).logits
                close(logits[index, node], wanted[0, 0], tolerance)


@needs_kernels
@pytest.mark.parametrize("name", NATIVE)
def test_kernels_read_what_torch_reads(name: str, load: Any) -> None:
    """Layers with windows of their own too, a prompt and a tree behind it."""
    ids, nodes = tokens(1, 17), tokens(1, len(TREE), seed=1)
    for view in (VIEW, View(0, 2), View(6, 3), View(20, 1)):
        found = {}
        for backend in ("kernels", "torch"):
            model, _ = exact(load, name, backend)
            cache = model.new_cache(1, 32)
            prompt = run(model, cache, ids, view=view).logits
            tree = run(model, cache, nodes, trees=[TREE], view=view).logits
            found[backend] = torch.cat((prompt, tree), 1).float()
        close(found["kernels"], found["torch"])


@pytest.fixture(scope="module")
def long_texts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint with room for contexts that the kernels split among threads."""
    config = tiny_config("llama")
    config.max_position_embeddings = 2048
    folder = tmp_path_factory.mktemp("long")
    random_model(config).save_pretrained(folder)
    return folder


@needs_kernels
def test_long_contexts_are_read_in_parts(long_texts: Any) -> None:
    """Sinks and windows that lie parts of the context apart, touch, or cross from one to another."""
    kernels = load_model(long_texts, dtype="fp32", device="cpu", backend="kernels")
    exactly = load_model(long_texts, dtype="fp64", device="cpu", backend="torch")
    ids, new, tree = tokens(1, 1700), tokens(1, 3, seed=2), Tree((-1, 0, 0))
    caches = [model.new_cache(1, 1800) for model in (kernels, exactly)]
    for model, cache in zip((kernels, exactly), caches, strict=True):
        run(model, cache, ids, logits_for="none")
    views = (View(4, 100), View(600, 200), View(0, 700), View(1000, 690), View(1, 1))
    for view in (*views, View(4, 100, blocks=3), View(70, 9, blocks=1), View(0, 700, blocks=9)):
        logits = []
        for model, cache in zip((kernels, exactly), caches, strict=True):
            logits.append(run(model, cache, new, trees=[tree], view=view).logits.float())
            cache.trim(0, 1700)
        close(logits[0], logits[1])
        whole = run(kernels, caches[0], new, trees=[tree]).logits
        caches[0].trim(0, 1700)
        assert (whole - logits[0]).abs().max() > 0.01


@pytest.fixture(params=["kernels", "torch"])
def long_model(request: pytest.FixtureRequest, long_texts: Any) -> Any:
    """A model with room for some blocks, on either backend."""
    if request.param == "kernels":
        request.applymarker(needs_kernels)
        return load_model(long_texts, dtype="fp32", device="cpu", backend="kernels")
    return load_model(long_texts, dtype="fp64", device="cpu", backend="torch")


def seen_with_blocks(layer: tuple[torch.Tensor, torch.Tensor], at: int, view: View) -> torch.Tensor:
    """Bool [kv_heads, at + 1]: what a token at a position reads, by the definition.

    Args:
        layer: queries [kv_heads, groups, head_dim] of the token, and keys [kv_heads, at + 1, head_dim].
    """
    queries, keys = layer
    visible = seen(at + 1, view)[-1].repeat(len(keys), 1)
    ends = range(BLOCK_SIZE, at + 2 - view.window, BLOCK_SIZE)
    blocks = [slice(end - BLOCK_SIZE, end) for end in ends if end > view.sinks]
    for head, (query, key) in enumerate(zip(queries, keys, strict=True)):
        scores = [float((query @ key[block].mean(0)).sum()) for block in blocks]
        ranked = sorted(range(len(blocks)), key=lambda block: -scores[block])
        for block in ranked[: view.blocks]:
            visible[head, blocks[block]] = True
    return visible


def test_blocks_are_those_that_fit_best(long_texts: Any) -> None:
    """What a layer gives is attention over what the definition says, head by head."""
    model = load_model(long_texts, dtype="fp64", device="cpu", backend="torch")
    cache, view = model.new_cache(1, 400), View(3, 50, blocks=2)
    run(model, cache, tokens(1, 333), logits_for="none")
    layers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    read = BlockChoice.read

    def noting(self: BlockChoice, appending: Any, index: int, query: torch.Tensor) -> Any:
        chosen = read(self, appending, index, query)
        keys = appending.read(index)[0][0]
        seen_by_head = torch.zeros(len(keys), keys.shape[1], dtype=torch.bool)
        seen_by_head.scatter_(1, chosen.slots[0, :, 0], chosen.mask[0, :, 0] == 0)
        layers.append((query[0, :, 0].unflatten(0, (len(keys), -1)), keys, seen_by_head))
        return chosen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockChoice, "read", noting)
        run(model, cache, tokens(1, 1, seed=3), view=view)
    assert len(layers) == model.num_layers
    for queries, keys, chosen in layers:
        wanted = seen_with_blocks((queries, keys), 333, view) & ~seen(334, view)[-1]
        assert torch.equal(wanted, chosen)


@pytest.mark.parametrize("window", [14, 334 - 4 * BLOCK_SIZE])
def test_all_blocks_are_the_whole_text(window: int, long_model: Any) -> None:
    """Where a window begins with a block, and all blocks before it are read."""
    cache, new = long_model.new_cache(1, 400), tokens(1, 1, seed=3)
    run(long_model, cache, tokens(1, 333), logits_for="none")
    whole = run(long_model, cache, new).logits
    tolerance = 0.0 if isinstance(long_model, CpuModel) else 1e-10
    for view in (View(0, window, blocks=9), View(70, window, blocks=5), View(3, window, blocks=5)):
        cache.trim(0, 333)
        close(run(long_model, cache, new, view=view).logits, whole, tolerance)


def test_trimming_recomputes_blocks(long_model: Any) -> None:
    """Blocks of another text that was trimmed, or of which a path was kept, are worked out again."""
    view, new = View(2, 40, blocks=1), tokens(2, 1, seed=3)
    texts = [tokens(1, 300, seed=seed) for seed in (1, 2, 3)]
    fresh = long_model.new_cache(2, 400)
    run(long_model, fresh, torch.cat((texts[2], texts[1])), logits_for="none")
    wanted = run(long_model, fresh, new, view=view).logits
    cache = long_model.new_cache(2, 400)
    run(long_model, cache, torch.cat((texts[0], texts[1])), logits_for="none")
    other = run(long_model, cache, new, view=view).logits
    assert not torch.equal(other[0], wanted[0])
    cache.trim(0, 0)
    cache.trim(1, 300)
    run(long_model, cache, texts[2], [0], logits_for="none")
    again = run(long_model, cache, new, view=view).logits
    assert torch.equal(again, wanted)


def test_keeping_a_path_recomputes_blocks(long_model: Any) -> None:
    """Whether or not a view chose among blocks of what was thrown away."""
    view, new, found = View(2, 40, blocks=1), tokens(1, 1, seed=3), []
    for chooses_before in (False, True):
        cache = long_model.new_cache(1, 400)
        run(long_model, cache, tokens(1, 280, seed=1), logits_for="none")
        if chooses_before:
            run(long_model, cache, new, view=view)
        cache.keep(0, 240, [0, 39])
        run(long_model, cache, tokens(1, 140, seed=5), logits_for="none")
        found.append(run(long_model, cache, new, view=view).logits)
    assert torch.equal(*found)


def test_writing_a_row_recomputes_blocks(long_model: Any) -> None:
    view, new = View(2, 40, blocks=1), tokens(1, 1, seed=3)
    texts = [tokens(1, 300, seed=seed) for seed in (1, 2)]
    source, cache = long_model.new_cache(1, 400), long_model.new_cache(1, 400)
    for held, text in ((source, texts[1]), (cache, texts[0])):
        run(long_model, held, text, logits_for="none")
        run(long_model, held, new, view=view)
        held.trim(0, 300)
    for layer in range(long_model.num_layers):
        cache.write_row(0, layer, 300, source.read_row(0, layer, 300))
    logits = [run(long_model, held, new, view=view).logits for held in (source, cache)]
    assert torch.equal(*logits)


@pytest.fixture(scope="module")
def wide_heads(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint whose heads groups of codes divide."""
    config = tiny_config("llama")
    config.max_position_embeddings, config.head_dim, config.hidden_size = 512, 16, 64
    folder = tmp_path_factory.mktemp("wide")
    random_model(config).save_pretrained(folder)
    return folder


def placed(folder: Any, placement: Placement) -> Any:
    checkpoint = Checkpoint.open(folder)
    return checkpoint.load(checkpoint.run_config(placement))


@on_both(["llama"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4", "coarse"])
def test_rows_choose_blocks_of_their_own(
    name: str, backend: str, kv_dtype: str, wide_heads: Any
) -> None:
    """Ragged rows in another order than the cache's give what each gives alone, and so does a view after
    a coarse one."""
    coarse = kv_dtype == "coarse"
    dtype, kind = ("fp32" if backend == "kernels" else "fp64"), "int8" if coarse else kv_dtype
    model = placed(wide_heads, Placement(dtype, "cpu", backend, kind))
    view, rows = View(2, 40, coarse, blocks=1), [3, 0, 2]
    texts = [tokens(1, length, seed=length)[0].tolist() for length in (300, 70, 200)]
    new = tokens(3, 2, seed=3).tolist()
    cache = model.new_cache(4, 400)
    run(model, cache, texts, rows, logits_for="none")
    found = run(model, cache, new, rows, view=view).logits
    for index, text in enumerate(texts):
        cache.trim(rows[index], len(text))
    fine = run(model, cache, new, rows, view=View(2, 40, blocks=1)).logits
    for index, text in enumerate(texts):
        for logits, seen_with in ((found, view), (fine, View(2, 40, blocks=1))):
            alone = model.new_cache(1, 400)
            run(model, alone, [text], logits_for="none")
            wanted = run(model, alone, [new[index]], view=seen_with).logits
            close(logits[index], wanted[0], 0.0 if backend == "kernels" else 1e-9)


@needs_kernels
@pytest.mark.parametrize("coarse", [False, True])
def test_kernels_choose_the_blocks_that_torch_chooses(coarse: bool, wide_heads: Any) -> None:
    """From an int8 cache too: those of the keys as stored, whatever is read of them then."""
    views = (View(2, 40, coarse), View(2, 40, coarse, blocks=1), View(2, 40, coarse, blocks=9))
    logits: list[list[torch.Tensor]] = []
    for backend, dtype in (("kernels", "fp32"), ("torch", "fp64")):
        model = placed(wide_heads, Placement(dtype, "cpu", backend, "int8"))
        cache = model.new_cache(1, 400)
        run(model, cache, tokens(1, 300), logits_for="none")
        logits.append([])
        for view in views:
            logits[-1].append(run(model, cache, tokens(1, 1, seed=3), view=view).logits.float())
            cache.trim(0, 300)
    apart = [(first - second).abs().max() for first, second in zip(*logits, strict=True)]
    # Codes may differ by rounding, so not to the last bit: a block more or less would show.
    assert max(apart) < 0.3 * (logits[0][0] - logits[0][1]).abs().max()


def test_blocks_that_are_no_numbers_are_not_chosen(long_model: Any) -> None:
    """Whether there are better ones, or as many as may be chosen."""
    new, cache = tokens(1, 1, seed=3), long_model.new_cache(1, 400)
    run(long_model, cache, tokens(1, 300), logits_for="none")
    for layer in range(long_model.num_layers):
        spoil(cache, layer, 100)
    for blocks in (1, 9):
        logits = run(long_model, cache, new, view=View(2, 40, blocks=blocks)).logits
        assert logits.isfinite().all()
        cache.trim(0, 300)
    assert not run(long_model, cache, new).logits.isfinite().all()


def spoil(cache: Any, layer: int, slot: int) -> None:
    """Make the keys in a slot NaN."""
    if not isinstance(cache, CpuCache):
        cache.keys[layer][0, :, slot] = torch.nan
        return
    # A tile of fp32 begins with its keys: 16 slots after the other, a line of them for each dimension.
    tiles = cache.read_row(0, layer, 300)["tiles"]
    whole = (cache.native.kv_heads, -1, cache.native.tile_bytes // 4)
    numbers = tiles.view(torch.float32).view(whole)
    size, block = cache.native.head_dim, slot % BLOCK_SIZE // 16
    lines = numbers[:, slot // BLOCK_SIZE, block * size * 16 : (block + 1) * size * 16]
    lines.view(len(lines), size, 16)[:, :, slot % 16] = torch.nan
    cache.write_row(0, layer, 300, {"tiles": tiles})


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["mistral", "qwen3", "gpt2"])
def test_threads_and_chunks_change_no_view(name: str, precision: str) -> None:
    view, ids = View(70, 33), tokens(1, 150) % 33
    wanted: list[torch.Tensor] = []
    for threads, width in ((1, 1), (1, 150), (2, 1), (2, 64), (2, 7)):
        model = kernel_model(name, precision, "", threads)
        cache = model.new_cache(1, 160)
        chunks = [run(model, cache, chunk, view=view).logits for chunk in ids.split(width, 1)]
        wanted = wanted or chunks
        assert torch.equal(torch.cat(chunks, 1), torch.cat(wanted, 1))


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_what_lies_outside_is_not_read(name: str, load: Any) -> None:
    """Its keys and values may be anything."""
    model = load(name, "fp64")
    cache = model.new_cache(1, 32)
    run(model, cache, tokens(1, 15))
    new = tokens(1, 1, seed=2)
    wanted = run(model, cache, new, view=VIEW).logits
    cache.trim(0, 15)
    for held in (*cache.keys, *cache.values):
        held[:, :, VIEW.sinks : 15 + 1 - VIEW.window] = torch.nan
    assert torch.equal(run(model, cache, new, view=VIEW).logits, wanted)
    cache.trim(0, 15)
    assert name == "mistral" or run(model, cache, new).logits.isnan().all()


@on_both(["llama", "mistral"])
def test_a_wide_view_reads_all(name: str, backend: str, load: Any) -> None:
    model, tolerance = exact(load, name, backend)
    ids = tokens(2, 12)
    found = run(model, model.new_cache(2, 16), ids, view=View(0, 12)).logits
    close(found, run(model, model.new_cache(2, 16), ids).logits, tolerance)


@pytest.mark.parametrize(("sinks", "window", "blocks"), [(-1, 4, 0), (2, 0, 0), (2, 4, -1)])
def test_views_that_are_none(sinks: int, window: int, blocks: int) -> None:
    named = f"{sinks} sinks, a window of {window} tokens and {blocks} blocks"
    with pytest.raises(ConfigError, match=named):
        View(sinks, window, blocks=blocks)


def test_the_adapter_takes_no_views(load: Any) -> None:
    model = load("opt")
    with pytest.raises(UnsupportedModelError, match="reads all that its cache holds"):
        run(model, model.new_cache(1, 8), tokens(1, 3), view=VIEW)
