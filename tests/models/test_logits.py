"""Every family gives the logits and hidden states that transformers gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.core import Batch, Tree
from forerun.models.attention import norm, visibility
from tests.helpers.backends import on_both
from tests.helpers.forwards import run
from tests.helpers.tiny_models import FAMILIES, LEAF_PATHS, NATIVE, TREE, close, tokens

WIDTH = 20


_EXPECTED: dict[tuple[int, str], Tensor] = {}


def expected(model: Any, ids: Tensor) -> Tensor:
    """Logits of a model of `reference`, which lives as long as the tests do."""
    key = id(model), str(ids.tolist())
    if key not in _EXPECTED:
        with torch.no_grad():
            _EXPECTED[key] = model(ids).logits
    return _EXPECTED[key]


@on_both(FAMILIES)
def test_prefill(name: str, backend: str, reference: Any, load: Any) -> None:
    model, ids = load(name, backend=backend), tokens(2, WIDTH)
    out = run(model, model.new_cache(2, 32), ids)
    close(out.logits, expected(reference(name), ids))


@on_both(FAMILIES)
def test_chunks_then_step_by_step(name: str, backend: str, reference: Any, load: Any) -> None:
    model, ids = load(name, backend=backend), tokens(2, WIDTH)
    cache = model.new_cache(2, 32)
    assert run(model, cache, ids[:, :7], logits_for="none").logits is None
    last = run(model, cache, ids[:, 7:12], logits_for="last").logits
    steps = [run(model, cache, ids[:, i : i + 1]).logits for i in range(12, WIDTH)]
    close(torch.cat((last, *steps), dim=1), expected(reference(name), ids)[:, 11:])


@on_both(FAMILIES)
def test_each_node_of_a_tree_equals_its_own_path(
    name: str, backend: str, reference: Any, load: Any
) -> None:
    model, prompt = load(name, backend=backend), tokens(1, 9)
    nodes = tokens(1, len(TREE), seed=1)
    cache = model.new_cache(1, 32)
    run(model, cache, prompt)
    logits = run(model, cache, nodes, trees=[TREE]).logits
    for path in LEAF_PATHS:
        line = torch.cat((prompt, nodes[:, path]), dim=1)
        close(logits[0, path], expected(reference(name), line)[0, -len(path) :])


@on_both(["mistral", "gpt2", "gpt_neox"])
def test_a_tree_grows_level_by_level(name: str, backend: str, reference: Any, load: Any) -> None:
    """Nodes see those that earlier passes left in the cache."""
    model, prompt = load(name, backend=backend), tokens(1, 9)
    nodes = tokens(1, len(TREE), seed=1)
    cache = model.new_cache(1, 32)
    run(model, cache, prompt)
    parts = []
    for start, stop in ((0, 3), (3, 6), (6, 10)):
        grown = Tree(TREE.parents[:stop])
        parts.append(run(model, cache, nodes[:, start:stop], trees=[grown]).logits)
    logits = torch.cat(parts, dim=1)
    for path in LEAF_PATHS:
        line = torch.cat((prompt, nodes[:, path]), dim=1)
        close(logits[0, path], expected(reference(name), line)[0, -len(path) :])


@on_both(FAMILIES)
def test_hidden_states(name: str, backend: str, reference: Any, load: Any) -> None:
    model, ids = load(name, backend=backend), tokens(1, 8)
    with torch.no_grad():
        states = reference(name)(ids, output_hidden_states=True).hidden_states
    out = run(model, model.new_cache(1, 16), ids, hidden_layers=(0, 2), logits_for="none")
    assert set(out.hidden) == {0, 2}
    close(out.hidden[0], states[0])
    close(out.hidden[2], states[2])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_last_hidden_state_lies_before_the_norm(name: str, load: Any) -> None:
    model, ids = load(name), tokens(1, 8)
    out = run(model, model.new_cache(1, 16), ids, hidden_layers=(3,))
    logits = model.lm_head(model.final_norm(out.hidden[3]))
    torch.testing.assert_close(logits, out.logits, rtol=0, atol=0)


@on_both(["llama-rope3", "qwen3", "gpt2", "gpt_neox"])
def test_bf16_stays_near(name: str, backend: str, reference: Any, load: Any) -> None:
    model, ids = load(name, "bf16", backend), tokens(1, 8)
    assert model.precision == "bf16"
    # The kernels add up in float32 and hand out what they have.
    assert model.dtype is (torch.float32 if backend == "kernels" else torch.bfloat16)
    found = run(model, model.new_cache(1, 16), ids).logits
    wanted = expected(reference(name), ids)
    assert found.dtype is model.dtype
    assert (found.float() - wanted).std() < 0.05 * wanted.std()


@pytest.mark.parametrize("name", NATIVE)
def test_float64_is_the_same_however_it_is_cut(name: str, load: Any) -> None:
    model, ids = load(name, "fp64"), tokens(1, 8)
    out = run(model, model.new_cache(1, 16), ids, hidden_layers=(1,))
    assert out.logits.dtype is out.hidden[1].dtype is torch.float64
    cache = model.new_cache(1, 16)
    steps = [run(model, cache, ids[:, i : i + 1]).logits for i in range(8)]
    close(torch.cat(steps, dim=1), out.logits, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_are_computed_in_their_dtype(dtype: torch.dtype) -> None:
    hidden, weight = torch.randn(2, 3, 8, dtype=dtype), torch.randn(8, dtype=dtype)
    wanted = hidden / (hidden.double().square().mean(-1, keepdim=True) + 0.1).sqrt() * weight
    close(norm(hidden, weight, None, 0.1).double(), wanted, 8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("trees", [None, [Tree((-1, -1, 0)), Tree((-1,))]], ids=["chains", "trees"])
def test_padding_sees_something(start: int, trees: list[Tree] | None, load: Any) -> None:
    """A softmax over nothing is NaN on some devices."""
    cache = load("llama").new_cache(2, 8)
    if start:
        run(load("llama"), cache, tokens(2, start))
    batch = Batch.after(cache, [0, 1], [[1, 2, 3], [4]], trees=trees)
    positions = torch.from_numpy(batch.padded(batch.positions, -1))
    mask = visibility(cache.append(batch, positions, range(3)), 4, torch.float32).mask
    assert mask is None or (mask == 0).any(-1).all()
