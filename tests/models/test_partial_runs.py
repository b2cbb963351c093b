"""A target that runs in parts, for drafters that are part of it: heads, layers, what each layer holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.errors import CacheError, ConfigError
from forerun.models.running import prefill_chunks
from tests.helpers.backends import BACKENDS, on_both
from tests.helpers.covering import covering
from tests.helpers.forwards import run
from tests.helpers.kernel_models import LEVELS, PRECISIONS, SHAPES, needs_kernels
from tests.helpers.kernel_models import model as kernel_model
from tests.helpers.tiny_models import FAMILIES, NATIVE, close, tokens

LAYERS = 3
# Its logits are capped after the head, so the head alone does not give them.
CAPPED = "gemma2"
# transformers keeps norms and rotations in float32 even in float64; see each adapter's tolerance.
ADAPTED = {"gemma2": 1e-4, "gpt_neox": 1e-5, "gpt_neo": 1e-4}


def head(model: Any, hidden: Tensor) -> Any:
    return model.lm_head(model.final_norm(hidden))


def rest_of(model: Any) -> range:
    return range(1, model.num_layers)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "precision", "level"), covering(SHAPES, PRECISIONS, LEVELS, fast=1, whole=2)
)
def test_the_head_gives_a_forwards_logits_bit_for_bit(
    name: str, precision: str, level: str
) -> None:
    model = kernel_model(name, precision, level)
    ids = tokens(2, 7) % model.vocab_size
    out = run(model, model.new_cache(2, 8), ids, hidden_layers=(LAYERS,))
    assert torch.equal(head(model, out.hidden[LAYERS]), out.logits)
    assert torch.equal(head(model, out.hidden[LAYERS][1:, 4:5]), out.logits[1:, 4:5])


@pytest.mark.parametrize("name", NATIVE)
def test_the_head_on_torch(name: str, load: Any) -> None:
    model, ids = load(name, "fp64"), tokens(2, 7)
    out = run(model, model.new_cache(2, 8), ids, hidden_layers=(LAYERS,))
    assert torch.equal(head(model, out.hidden[LAYERS]), out.logits)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NATIVE])
def test_the_head_of_the_adapters_models(name: str, load: Any) -> None:
    model = load(name, "fp64")
    if name == CAPPED:
        with pytest.raises(ConfigError, match="no output head that can be run alone"):
            head(model, torch.zeros(1, 1, 24))
        return
    # Without layers the embedding is all that the head reads: the states below the first one are
    # those that a model of no layers would end with.
    hidden = run(model, model.new_cache(1, 8), tokens(1, 5), hidden_layers=(0,)).hidden[0]
    model.model.base_model.config.num_hidden_layers = 0
    body = getattr(model.model.base_model, "decoder", model.model.base_model)
    layers = "h" if name == "gpt_neo" else "layers"
    kept = getattr(body, layers)
    setattr(body, layers, torch.nn.ModuleList())
    try:
        wanted = model.model(input_ids=tokens(1, 5), use_cache=False).logits
    finally:
        setattr(body, layers, kept)
    close(head(model, hidden), wanted, 1e-10)


@needs_kernels
def test_a_head_is_asked_for_states_of_its_width() -> None:
    for part in (kernel_model("llama").final_norm, kernel_model("llama").lm_head):
        with pytest.raises(ConfigError, match="hidden has a shape"):
            part(torch.zeros(1, 1, 39))


@on_both(FAMILIES)
def test_the_embedding_runs_alone(name: str, backend: str, load: Any) -> None:
    """What enters the first layer, but for positions that a model has learned."""
    model = load(name, "fp32", backend)
    ids = tokens(2, 5)
    entering = run(model, model.new_cache(2, 8), ids, hidden_layers=(0,)).hidden[0]
    embedded = model.embed(ids)
    assert embedded.shape == entering.shape
    assert embedded.dtype is model.dtype
    assert torch.equal(model.embed(ids[:, 3:]), embedded[:, 3:])
    if name not in ("gpt2", "opt", "gpt_neo"):
        assert torch.equal(embedded, entering)
        return
    twice = torch.full((1, 2), 7)
    entering = run(model, model.new_cache(1, 8), twice, hidden_layers=(0,)).hidden[0]
    learned = entering - model.embed(twice)
    assert not torch.equal(learned[0, 0], learned[0, 1])
    other = run(model, model.new_cache(1, 8), twice + 1, hidden_layers=(0,)).hidden[0]
    close(other - model.embed(twice + 1), learned, 1e-6)


@needs_kernels
def test_what_is_not_a_token_is_not_embedded() -> None:
    for token in (-1, 61):
        with pytest.raises(ConfigError, match=f"{token} is not a token id; they end at 60"):
            kernel_model("llama").embed(torch.tensor([[0, token]]))


@on_both(FAMILIES)
def test_a_prefill_in_chunks_returns_the_hidden_states_of_one_pass(
    name: str, backend: str, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of different lengths, some of which end chunks before the others."""
    model = load(name, "fp32", backend) if backend == "kernels" else load(name, "fp64")
    tolerance = 0.0 if backend == "kernels" else ADAPTED.get(name, 1e-10)
    monkeypatch.setattr("forerun.models.running.PREFILL_CHUNK", 7)
    texts = [tokens(1, length, seed=length)[0].tolist() for length in (20, 3, 14)]
    rows, layers = [2, 0, 3], (0, 1, 2)
    cache, whole = model.new_cache(4, 32), model.new_cache(4, 32)
    wanted = run(model, whole, texts, rows, hidden_layers=layers, logits_for="none")
    assert wanted.logits is None
    seen: dict[int, list[Tensor]] = {row: [] for row in rows}
    for batch, out in prefill_chunks(model, cache, rows, texts, layers):
        assert out.logits is None
        assert batch.width <= 7
        for index, (row, count) in enumerate(zip(batch.rows, batch.counts, strict=True)):
            seen[row].append(torch.stack([out.hidden[i][index, :count] for i in layers]))
    for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
        assert cache.length(row) == len(text)
        states = torch.stack([wanted.hidden[i][index, : len(text)] for i in layers])
        close(torch.cat(seen[row], dim=1), states, tolerance)


@on_both(NATIVE)
def test_layers_are_trimmed_apart(name: str, backend: str, load: Any) -> None:
    """What the upper layers made of wrong states is forgotten, and what they make anew is right."""
    model = load(name, "fp32", backend) if backend == "kernels" else load(name, "fp64")
    tolerance = 0.0 if backend == "kernels" else 1e-10
    ids, follow, rest = tokens(1, 9), tokens(1, 4, seed=2), rest_of(model)
    cache, fresh = model.new_cache(1, 32), model.new_cache(1, 32)
    run(model, cache, ids)
    low = run(model, cache, follow, layers=range(1), hidden_layers=(1,)).hidden[1]
    run(model, cache, follow, layers=rest, hidden_in=low + 1)
    assert cache.length(0) == 13
    cache.trim(0, 9, rest)
    assert cache.length(0) == 9
    with pytest.raises(CacheError):
        run(model, cache, follow)
    found = run(model, cache, follow, layers=rest, hidden_in=low).logits
    wanted = run(model, fresh, torch.cat((ids, follow), 1)).logits
    close(found, wanted[:, 9:], tolerance)
    cache.trim(0, 4)
    assert cache.length(0) == 4
    run(model, cache, ids[:, 4:])
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
    with pytest.raises(CacheError, match="trimmed in all layers"):
        cache.trim(0, 0, range(1))


@on_both(NATIVE)
def test_ragged_rows_run_in_parts(name: str, backend: str, load: Any) -> None:
    """As a round does: the first layers for each row alone, then the rest for all rows at once."""
    model = load(name, "fp32", backend) if backend == "kernels" else load(name, "fp64")
    tolerance = 0.0 if backend == "kernels" else 1e-10
    texts = [tokens(1, 6)[0].tolist(), tokens(1, 9, seed=1)[0].tolist()]
    news = [tokens(1, 4, seed=2)[0].tolist(), tokens(1, 2, seed=3)[0].tolist()]
    cache, whole = model.new_cache(3, 32), model.new_cache(3, 32)
    rows = [2, 0]
    for some in (cache, whole):
        run(model, some, texts, rows, logits_for="none")
    wanted = run(model, whole, news, rows).logits
    states = torch.zeros(2, 4, model.hidden_size, dtype=model.dtype)
    for index, (row, new) in enumerate(zip(rows, news, strict=True)):
        low = run(model, cache, [new], [row], layers=range(1), hidden_layers=(1,))
        assert low.logits is None
        states[index, : len(new)] = low.hidden[1][0]
    found = run(model, cache, news, rows, layers=rest_of(model), hidden_in=states).logits
    for index, new in enumerate(news):
        close(found[index, : len(new)], wanted[index, : len(new)], tolerance)
