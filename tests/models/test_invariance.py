"""On the CPU kernels the result for a token depends on its path of tokens alone, bit for bit."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.core import Tree
from forerun.models.cpu import CpuModel, KernelChoice
from forerun.models.sources import TensorSource
from tests.helpers.covering import covering
from tests.helpers.forwards import run
from tests.helpers.kernel_models import (
    LEVELS,
    PRECISIONS,
    SHAPES,
    architecture,
    check_levels,
    last_of,
    model,
    needs_kernels,
    plain,
    weights,
)
from tests.helpers.random_trees import Row, check_nodes, commit, grow

pytestmark = needs_kernels
THREADS = (1, 2) if (os.cpu_count() or 1) > 1 else (1,)
every_precision = pytest.mark.parametrize("precision", PRECISIONS)
# Each precision with each level is quick: so they meet the shapes in turn.
on_levels = pytest.mark.parametrize(
    ("name", "precision", "level"), covering(SHAPES, PRECISIONS, LEVELS, fast=1, whole=2)
)
with_threads = pytest.mark.parametrize(
    ("name", "precision", "threads"), covering(SHAPES, PRECISIONS, THREADS, fast=1, whole=2)
)
shapes_in_turn = pytest.mark.parametrize(("name", "precision"), covering(SHAPES, PRECISIONS))


def text(one: CpuModel, length: int, rng: random.Random) -> list[int]:
    return [rng.randrange(one.vocab_size) for _ in range(length)]


def append(one: CpuModel, cache: Any, row: int, ids: list[int], **options: Any) -> Any:
    """Run ids behind what a row holds."""
    return run(one, cache, [ids], [row], **options)


@on_levels
def test_chunks_and_threads_change_nothing(name: str, precision: str, level: str) -> None:
    """One prefill, chunks of random sizes and single steps give one result; so does `last`."""
    rng = random.Random(f"{name}{precision}{level}")
    first = model(name, precision, level, 1)
    ids = text(first, 110, rng)
    logits, hidden = plain(first, ids)
    layers = tuple(range(first.num_layers + 1))
    for threads in THREADS:
        one = model(name, precision, level, threads)
        for longest in (110, 40, 17, 5) if level != "portable" else (110, 17):
            cache, done = one.new_cache(2, 128), 0
            while done < len(ids):
                count = len(ids) if longest == 110 else rng.randint(1, longest)
                chunk, seen = ids[done : done + count], slice(done, done + count)
                last = rng.random() < 0.5
                which = "last" if last else "all"
                out = append(one, cache, 1, chunk, hidden_layers=layers, logits_for=which)
                assert torch.equal(out.logits[0], logits[seen][-1:] if last else logits[seen])
                states = torch.stack([out.hidden[layer][0] for layer in layers], dim=1)
                assert torch.equal(states, hidden[seen])
                done += len(chunk)


@with_threads
def test_other_rows_change_nothing(name: str, precision: str, threads: int) -> None:
    """Ragged batches, rows in any order, rows that are left out, padding."""
    rng = random.Random(f"{name}{precision}")
    one = model(name, precision, "", threads)
    texts = [text(one, length, rng) for length in (37, 5, 20, 11)]
    wanted = [plain(one, ids)[0] for ids in texts]
    cache, done = one.new_cache(5, 40), [0] * 4
    slots = rng.sample(range(5), 4)
    for _ in range(99):
        counts = [min(rng.randint(0, 9), len(t) - d) for t, d in zip(texts, done, strict=True)]
        order = [row for row in rng.sample(range(4), rng.randint(1, 4)) if counts[row]]
        if not order:
            continue
        news = [texts[row][done[row] : done[row] + counts[row]] for row in order]
        last = rng.random() < 0.3
        which: Any = "last" if last else "all"
        out = run(one, cache, news, [slots[row] for row in order], logits_for=which)
        for index, row in enumerate(order):
            new = wanted[row][done[row] : done[row] + counts[row]]
            found = out.logits[index] if last else out.logits[index, : len(new)]
            assert torch.equal(found, new[-1:] if last else new)
            done[row] += len(new)
            assert cache.length(slots[row]) == done[row]
    assert sum(done) > 60


@on_levels
def test_a_node_of_a_tree_equals_its_path(name: str, precision: str, level: str) -> None:
    """Trees in any storage order, grown in parts, over windows that end inside of them."""
    rng = random.Random(f"{name}{precision}{level}")
    one = model(name, precision, level, THREADS[-1])
    # The portable kernels are slow.
    for start in (1, 15, 16, 61) if level != "portable" else (15,):
        cache, row = one.new_cache(1, 96), Row(0, text(one, start, rng))
        append(one, cache, 0, row.committed)
        for _ in range(2):
            for _ in range(rng.randint(1, 3)):
                count = rng.randint(1, 7)
                row.draft(count, one.vocab_size, rng)
                check_nodes(one, [row], [count], grow(one, cache, [row], [count]))
            commit(cache, row, rng)
        follow = text(one, 3, rng)
        found = append(one, cache, 0, follow).logits[0]
        assert torch.equal(found, plain(one, row.committed + follow)[0][-3:])


@with_threads
def test_trees_of_a_ragged_batch(name: str, precision: str, threads: int) -> None:
    rng = random.Random(f"{name}{precision}")
    one = model(name, precision, "", threads)
    cache = one.new_cache(4, 96)
    rows = [Row(at, text(one, start, rng)) for at, start in ((2, 21), (0, 3), (3, 40))]
    for row in rows:
        append(one, cache, row.row, row.committed)
    for _ in range(3):
        for _ in range(2):
            counts = [rng.randint(1, 6), rng.randint(0, 3), rng.randint(0, 6)]
            for row, count in zip(rows, counts, strict=True):
                row.draft(count, one.vocab_size, rng)
            check_nodes(one, rows, counts, grow(one, cache, rows, counts))
        for row in rows:
            commit(cache, row, rng)


@every_precision
@pytest.mark.parametrize("width", [6, 13, 30])
def test_wide_trees(precision: str, width: int) -> None:
    """More nodes and heads than one tile of the kernels takes."""
    rng = random.Random(width)
    for name in ("llama-biases", "mistral"):
        one = model(name, precision, "", THREADS[-1])
        cache, row = one.new_cache(1, 128), Row(0, text(one, 50, rng))
        append(one, cache, 0, row.committed)
        row.draft(width, one.vocab_size, rng)
        check_nodes(one, [row], [width], grow(one, cache, [row], [width]))


@shapes_in_turn
def test_trimmed_rows_go_on_another_way(name: str, precision: str) -> None:
    rng, one = random.Random(name), model(name, precision)
    ids = text(one, 30, rng)
    cache = one.new_cache(1, 64)
    append(one, cache, 0, ids)
    for length in (17, 16, 3, 0):
        cache.trim(0, length)
        ids = ids[:length] + text(one, 20, rng)
        found = append(one, cache, 0, ids[length:]).logits[0]
        assert torch.equal(found, plain(one, ids)[0][length:])


@shapes_in_turn
def test_some_layers_then_the_rest_equal_all(name: str, precision: str) -> None:
    rng, one = random.Random(name), model(name, precision)
    ids = text(one, 21, rng)
    wanted = plain(one, ids)[0]
    for split in range(1, one.num_layers):
        cache, hidden = one.new_cache(1, 32), []
        for start, stop in ((0, 9), (9, 10), (10, 21)):
            some = {"layers": range(split), "hidden_layers": (split,)}
            out = append(one, cache, 0, ids[start:stop], **some)
            assert out.logits is None
            hidden.append(out.hidden[split])
        assert cache.length(0) == 0
        upper = {"layers": range(split, one.num_layers), "hidden_in": torch.cat(hidden, dim=1)}
        found = append(one, cache, 0, [0] * 21, **upper).logits
        assert torch.equal(found[0], wanted)
        assert cache.length(0) == 21


@every_precision
def test_another_text_gives_other_logits(precision: str) -> None:
    """What is compared above is sensitive to every token in sight."""
    for name in SHAPES:
        one, rng = model(name, precision), random.Random(1)
        ids = text(one, 20, rng)
        texts = [ids]
        seen = 20 if name not in ("mistral",) else 5 * one.num_layers - 2
        for place in range(20 - seen, 20):
            texts.append(list(ids))
            texts[-1][place] = (ids[place] + 1) % one.vocab_size
        logits, *others = run(one, one.new_cache(21, 20), texts, logits_for="last").logits
        for other in others:
            assert not torch.equal(other, logits), name


@shapes_in_turn
def test_levels(name: str, precision: str) -> None:
    """All instruction sets add in the same order, with the same roundings: but AMX in bf16."""
    rng = random.Random(name)
    ids = text(model(name, precision), 40, rng)
    found: list[Tensor] = [plain(model(name, precision, level), ids)[0] for level in LEVELS]
    check_levels(precision, found)


@every_precision
def test_where_the_parts_of_a_context_end_changes_nothing(precision: str) -> None:
    """One key head for two threads, which share its context: a tree across the end of a part."""
    shape = replace(architecture("qwen3"), max_context=700)
    source = TensorSource(weights("qwen3"), "qwen3")
    one = CpuModel(shape, source, precision, "qwen3", KernelChoice(threads=THREADS[-1]))
    rng = random.Random(precision)
    cache, row = one.new_cache(1, 640), Row(0, text(one, 507, rng))
    append(one, cache, 0, row.committed)
    for _ in range(2):
        row.draft(12, one.vocab_size, rng)
        check_nodes(one, [row], [12], grow(one, cache, [row], [12]))
        commit(cache, row, rng)
    together = append(one, one.new_cache(1, 640), 0, row.committed, logits_for="last").logits
    assert torch.equal(together[0, 0], last_of(one, row.committed))


@every_precision
def test_where_the_segments_of_a_cache_end_changes_nothing(precision: str) -> None:
    """Rows longer than a segment, whose ends depend on the capacity: a tree across one, a path that is
    moved over it, and a text over several."""
    shape = replace(architecture("llama"), max_context=2300)
    source = TensorSource(weights("llama"), "llama")
    one = CpuModel(shape, source, precision, "llama", KernelChoice(threads=1))
    rng = random.Random(precision)
    ids, tree = text(one, 2190, rng), Tree.branching((2, 2, 2))
    results = []
    for capacity in (1000, 2200, 2500):
        # Segments of 1,024 (one), 768 and 896 slots.
        cache = one.new_cache(1, capacity)
        append(one, cache, 0, ids[:763], logits_for="none")
        nodes = run(one, cache, [ids[:14]], [0], trees=[tree]).logits
        cache.keep(0, 763, [1, 4, 11])
        after = append(one, cache, 0, ids[763:790]).logits
        results.append([nodes, after])
        if capacity > 1000:
            results[-1].append(append(one, cache, 0, ids[790:], logits_for="last").logits)
    short, *longer = results
    for logits in longer:
        assert all(map(torch.equal, logits, short))
        assert torch.equal(logits[2], longer[0][2])
