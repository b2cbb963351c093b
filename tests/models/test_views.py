"""Forwards that read the first and the newest tokens of their text alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forerun.core import View
from forerun.errors import ConfigError, UnsupportedModelError
from tests.helpers.forwards import run
from tests.helpers.tiny_models import NATIVE, PATHS, TREE, close, tokens

VIEW = View(2, 4)
LENGTH = 20


def seen(length: int, view: View) -> torch.Tensor:
    """Bool [length, length]: which positions each position reads."""
    at = torch.arange(length)
    near = at[None, :] > at[:, None] - view.window
    return (at[None, :] <= at[:, None]) & (near | (at[None, :] < view.sinks))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("view", [VIEW, View(0, 3), View(3, 1), View(5, 64)], ids=str)
def test_a_view_is_a_mask(name: str, view: View, load: Any, reference: Any) -> None:
    """Token by token, in parts that are read apart, as transformers with a mask of its own."""
    ids = tokens(1, LENGTH)
    mask = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~seen(LENGTH, view), -torch.inf)
    with torch.no_grad():
        wanted = reference(name)(input_ids=ids, attention_mask=mask, use_cache=False).logits
    model = load(name, "fp64")
    cache = model.new_cache(1, 32)
    for token in range(LENGTH):
        found = run(model, cache, ids[:, token : token + 1], view=view).logits
        close(found[0, 0].float(), wanted[0, token])


@pytest.mark.parametrize("name", NATIVE)
def test_chunks_trees_and_ragged_rows_read_the_same(name: str, load: Any) -> None:
    """Whatever is run together, each token reads what its own position and path say."""
    model = load(name, "fp64")
    prompts = [tokens(1, length, seed=length)[0].tolist() for length in (13, 3, 7)]
    nodes = tokens(3, len(TREE), seed=1).tolist()
    cache, rows = model.new_cache(4, 40), [3, 0, 2]
    run(model, cache, prompts, rows, view=VIEW)
    logits = run(model, cache, nodes, rows, trees=[TREE] * 3, view=VIEW).logits
    for index, prompt in enumerate(prompts):
        for node, path in enumerate(PATHS):
            alone, line = model.new_cache(1, 40), prompt + [nodes[index][step] for step in path]
            for token in line:
                wanted = run(model, alone, [[token]], view=VIEW).logits
            close(logits[index, node], wanted[0, 0], 1e-10)


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


def test_a_wide_view_reads_all(load: Any) -> None:
    model = load("llama", "fp64")
    ids = tokens(2, 12)
    found = run(model, model.new_cache(2, 16), ids, view=View(0, 12)).logits
    close(found, run(model, model.new_cache(2, 16), ids).logits, 1e-12)


@pytest.mark.parametrize(("sinks", "window"), [(-1, 4), (2, 0)])
def test_views_that_are_none(sinks: int, window: int) -> None:
    with pytest.raises(ConfigError, match=f"{sinks} sinks and a window of {window}"):
        View(sinks, window)


def test_the_adapter_takes_no_views(load: Any) -> None:
    model = load("opt")
    with pytest.raises(UnsupportedModelError, match="reads all that its cache holds"):
        run(model, model.new_cache(1, 8), tokens(1, 3), view=VIEW)
