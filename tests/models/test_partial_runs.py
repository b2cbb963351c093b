"""A target that runs in parts, for drafters that are part of it: heads, layers, what each layer holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends import BACKENDS, on_both
from kernel_models import LEVELS, PRECISIONS, SHAPES, needs_kernels
from kernel_models import model as kernel_model
from tiny_models import FAMILIES, NATIVE, close, run, tokens

from forerun.errors import CacheError, ConfigError
from forerun.models.running import run_rows

LAYERS = 3
# Its logits are capped after the head, so the head alone does not give them.
CAPPED = "gemma2"


def rest_of(model: Any) -> range:
    return range(1, model.num_layers)


@needs_kernels
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_head_gives_a_forwards_logits_bit_for_bit(
    name: str, precision: str, level: str
) -> None:
    model = kernel_model(name, precision, level)
    ids = tokens(2, 7) % model.vocab_size
    out = run(model, model.new_cache(2, 8), ids, hidden_layers=(LAYERS,))
    assert torch.equal(model.head(out.hidden[LAYERS]), out.logits)
    one = model.head(out.hidden[LAYERS][1:, 4:5])
    assert torch.equal(one, out.logits[1:, 4:5])


@pytest.mark.parametrize("name", NATIVE)
def test_the_head_on_torch(name: str, load: Any) -> None:
    model, ids = load(name, "fp64"), tokens(2, 7)
    out = run(model, model.new_cache(2, 8), ids, hidden_layers=(LAYERS,))
    assert torch.equal(model.head(out.hidden[LAYERS]), out.logits)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NATIVE])
def test_the_head_of_the_adapters_models(name: str, load: Any) -> None:
    model = load(name, "fp64")
    if name == CAPPED:
        with pytest.raises(ConfigError, match="no output head that can be run alone"):
            model.head(torch.zeros(1, 1, 24))
        return
    # Without layers the embedding is all that the head reads: the states below the first one are
    # those that a model of no layers would end with.
    hidden = run(model, model.new_cache(1, 8), tokens(1, 5), hidden_layers=(0,)).hidden[0]
    model.model.base_model.config.num_hidden_layers = 0
    body = getattr(model.model.base_model, "decoder", model.model.base_model)
    kept, body.layers = body.layers, torch.nn.ModuleList()
    try:
        wanted = model.model(input_ids=tokens(1, 5), use_cache=False).logits
    finally:
        body.layers = kept
    close(model.head(hidden), wanted, 1e-10)


@needs_kernels
def test_a_head_is_asked_for_states_of_its_width() -> None:
    with pytest.raises(ConfigError, match="hidden has a shape"):
        kernel_model("llama").head(torch.zeros(1, 1, 39))


@on_both(NATIVE)
def test_layers_are_trimmed_apart(name: str, backend: str, load: Any) -> None:
    """What the upper layers made of wrong states is forgotten, and what they make anew is right."""
    model = load(name, "fp32", backend) if backend == "kernels" else load(name, "fp64")
    tolerance = 0.0 if backend == "kernels" else 1e-10
    ids, follow, rest = tokens(1, 9), tokens(1, 4, seed=2), rest_of(model)
    cache, fresh = model.new_cache(1, 32), model.new_cache(1, 32)
    run(model, cache, ids)
    low = run(model, cache, follow, 9, layers=range(1), hidden_layers=(1,)).hidden[1]
    run(model, cache, follow, 9, layers=rest, hidden_in=low + 1)
    assert cache.length(0) == 13
    cache.trim(0, 9, rest)
    assert cache.length(0) == 9
    with pytest.raises(CacheError):
        run(model, cache, follow, 9)
    found = run(model, cache, follow, 9, layers=rest, hidden_in=low).logits
    wanted = run(model, fresh, torch.cat((ids, follow), 1)).logits
    close(found, wanted[:, 9:], tolerance)
    cache.trim(0, 4)
    assert cache.length(0) == 4
    run(model, cache, ids[:, 4:], 4)
    cache.trim(0, 0, range(0))
    assert cache.length(0) == 9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layers", [range(2, 4), range(-1, 1)])
def test_layers_that_a_cache_lacks_are_not_trimmed(backend: str, layers: range, load: Any) -> None:
    cache = load("llama", backend=backend).new_cache(1, 4)
    with pytest.raises(CacheError, match=r"cannot trim .*layers"):
        cache.trim(0, 0, layers)


def test_the_adapters_cache_is_trimmed_as_a_whole(load: Any) -> None:
    cache = load("opt").new_cache(1, 4)
    with pytest.raises(CacheError, match="trimmed as a whole"):
        cache.trim(0, 0, range(1))


@on_both(NATIVE)
def test_ragged_rows_run_in_parts(name: str, backend: str, load: Any) -> None:
    """As a round does: the first layers for each row alone, then the rest for all rows at once."""
    model = load(name, "fp32", backend) if backend == "kernels" else load(name, "fp64")
    tolerance = 0.0 if backend == "kernels" else 1e-10
    texts = [tokens(1, 6)[0].tolist(), tokens(1, 9, seed=1)[0].tolist()]
    news = [tokens(1, 4, seed=2)[0].tolist(), tokens(1, 2, seed=3)[0].tolist()]
    cache, whole = model.new_cache(3, 32), model.new_cache(3, 32)
    rows, places = [2, 0], [[*range(6, 10)], [*range(9, 11)]]
    for some in (cache, whole):
        run_rows(model, some, rows, texts, logits_for="none")
    wanted = run_rows(model, whole, rows, news).logits
    assert wanted is not None
    states = torch.zeros(2, 4, model.hidden_size, dtype=model.dtype)
    for index, (row, new, place) in enumerate(zip(rows, news, places, strict=True)):
        options = {"positions": [place], "layers": range(1), "hidden_layers": (1,)}
        low = run_rows(model, cache, [row], [new], **options)
        assert low.logits is None
        states[index, : len(new)] = low.hidden[1][0]
    options = {"positions": places, "layers": rest_of(model), "hidden_in": states}
    found = run_rows(model, cache, rows, news, **options).logits
    assert found is not None
    for index, new in enumerate(news):
        close(found[index, : len(new)], wanted[index, : len(new)], tolerance)
