"""Which tokens stay in a compressed cache, and that they are what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.compression import METHODS, Compression
from forerun.core import View
from forerun.errors import CacheError
from forerun.models import load_model
from tests.helpers.backends import BACKENDS
from tests.helpers.forwards import run
from tests.helpers.interruptions import interrupted_at
from tests.helpers.kernel_models import long_kernel_model, needs_kernels
from tests.helpers.tiny_models import close, tiny_model, tokens

LENGTH, STAY, SINKS, RECENT = 30, 14, 2, 5


def settings(method: str, **options: Any) -> Compression:
    options = {"kv_budget": STAY, "kv_sinks": SINKS, "kv_recent": RECENT, **options}
    return Compression(kv_method=method, **options)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of transformers that shows its attention, and the same loaded by forerun."""
    folder = tmp_path_factory.mktemp("llama")
    reference = tiny_model("llama")
    reference.save_pretrained(folder)
    reference.set_attn_implementation("eager")
    return reference.double(), load_model(folder, dtype="fp64", backend="torch")


def filled(model: Any, compression: Compression) -> Any:
    """A cache of one row that has read a prompt in two chunks and evicted."""
    cache, ids = model.compressed_cache(2, 64, compression), tokens(1, LENGTH)
    for chunk in (ids[:, :11], ids[:, 11:]):
        cache.commit(1)
        run(model, cache, chunk, [1])
    cache.evict(1)
    return cache


def chosen(scores: Tensor, count: int = STAY) -> Tensor:
    """The largest [kv_heads, count] with those that always stay, in their order."""
    scores = scores.clone()
    scores[:, :SINKS] = scores[:, LENGTH - RECENT :] = torch.inf
    return scores.topk(count).indices.sort(-1).values


def by_attention(method: str, attention: Tensor) -> Tensor:
    """Scores [kv_heads, m] from the attention [kv_heads, n, m] of all queries, as the papers have it."""
    if method == "h2o":
        return attention.sum(1)
    if method == "tova":
        return attention[:, -1].mean(0).expand(len(attention), -1)
    padded = torch.nn.functional.pad(attention[:, -RECENT:].mean(1), (2, 2))
    return padded.unfold(1, 5, 1).mean(-1)


@pytest.mark.parametrize("method", ["h2o", "tova", "snapkv"])
def test_what_stays_is_what_was_attended_to(method: str, pair: Any) -> None:
    reference, model = pair
    cache, whole = filled(model, settings(method)), model.new_cache(1, 64)
    run(model, whole, tokens(1, LENGTH))
    with torch.no_grad():
        shown = reference(input_ids=tokens(1, LENGTH), output_attentions=True).attentions
    for layer, attention in enumerate(shown):
        heads = attention[0].unflatten(0, (2, -1)).mean(1)
        index = chosen(by_attention(method, heads))[:, :, None]
        for mine, full in ((cache.keys, whole.keys), (cache.values, whole.values)):
            wanted = full[layer][0].gather(1, index.expand(-1, -1, 6))
            close(mine[layer][1, :, :STAY], wanted, 1e-10)


def test_streaming_llm_is_a_view_of_the_text(pair: Any) -> None:
    """What stays keeps its positions: the next token reads as if through a view of the whole cache."""
    _, model = pair
    cache, whole = filled(model, settings("streaming_llm")), model.new_cache(1, 64)
    run(model, whole, tokens(1, LENGTH))
    assert cache.length(1) == LENGTH
    new, view = tokens(1, 1, seed=5), View(SINKS, STAY - SINKS + 1)
    close(run(model, cache, new, [1]).logits, run(model, whole, new, view=view).logits, 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_a_ratio_is_of_the_prompt_alone(method: str, pair: Any) -> None:
    _, model = pair
    options = {"kv_budget": None, "kv_compression_ratio": 0.6, "kv_sinks": 1, "kv_recent": 3}
    cache = filled(model, settings(method, **options))
    assert [lengths[1] for lengths in cache.lengths] == [12] * 3
    assert cache.until_eviction(1) is None
    for count in range(1, 20):
        run(model, cache, tokens(1, 1, seed=count), [1])
        cache.evict(1)
        assert cache.length(1) == LENGTH + count
        assert cache.lengths[0][1] == 12 + count


@pytest.mark.parametrize("method", METHODS)
def test_a_budget_holds_from_interval_to_interval(method: str, pair: Any) -> None:
    _, model = pair
    cache = filled(model, settings(method, kv_interval=4))
    for count in range(1, 13):
        assert cache.until_eviction(1) == 4 - (count - 1) % 4
        run(model, cache, tokens(1, 1, seed=count), [1])
        cache.evict(1)
        assert cache.lengths[0][1] == STAY + count % 4
        assert cache.length(1) == LENGTH + count


def test_memory_follows_what_is_held(pair: Any) -> None:
    _, model = pair
    compression = settings("h2o", kv_interval=8)
    cache = model.compressed_cache(1, 2000, compression)
    small = cache.nbytes
    for start in range(0, 1500, 300):
        cache.commit(0)
        batch = tokens(1, 300, seed=start)
        # Positions go on, whatever the tiny model's context says.
        model.max_context = 2000
        run(model, cache, batch)
    assert cache.nbytes > 4 * small
    cache.evict(0)
    assert cache.nbytes == small
    model.max_context = 64


def test_rows_go_back_to_committed_text_or_begin_anew(pair: Any) -> None:
    _, model = pair
    cache = filled(model, settings("h2o", kv_interval=8))
    run(model, cache, tokens(1, 3, seed=1), [1])
    cache.trim(1, LENGTH)
    assert cache.length(1) == LENGTH
    for row in (-1, 2):
        for change in (lambda row: cache.trim(row, 0), lambda row: cache.keep(row, 0, ())):
            with pytest.raises(CacheError, match=f"row {row} is not in this cache"):
                change(row)
    with pytest.raises(CacheError, match=f"committed {LENGTH} tokens.*trimmed to 20"):
        cache.trim(1, 20)
    cache.trim(1, 0)
    assert cache.length(1) == 0
    assert cache.until_eviction(1) is None


@needs_kernels
def test_what_was_counted_is_not_taken_back() -> None:
    model = long_kernel_model()
    cache = model.compressed_cache(1, 700, settings("h2o"))
    run(model, cache, tokens(1, 400))
    cache.commit(0)
    with pytest.raises(CacheError, match=r"committed 256 tokens.*trimmed to 100"):
        cache.trim(0, 100)
    cache.trim(0, 300)
    assert cache.length(0) == 300


def read_in_chunks(model: Any, compression: Compression, sizes: tuple[int, ...]) -> Any:
    """A cache of one row that has read a prompt in chunks of these sizes, evicted, and gone on."""
    cache, first = model.compressed_cache(1, 700, compression), 0
    prompt = tokens(1, 601)
    for size in sizes:
        cache.commit(0)
        run(model, cache, prompt[:, first : first + size])
        first += size
    assert first == 601
    cache.commit(0)
    cache.evict(0)
    return cache


@needs_kernels
@pytest.mark.parametrize("method", METHODS)
def test_chunks_of_a_prompt_change_nothing(method: str) -> None:
    """On the kernels bit for bit: what is counted is counted in the same pieces, however it was run."""
    model, compression = long_kernel_model(), settings(method)
    caches = [
        read_in_chunks(model, compression, sizes)
        for sizes in ((601,), (255, 2, 255, 89), (100,) * 6 + (1,))
    ]
    for layer in range(model.num_layers):
        for values in (False, True):
            first, *others = (cache._numbers(layer, 0, STAY, values) for cache in caches)
            assert all(torch.equal(first, other) for other in others)
        first, *others = (cache._states[0][layer] for cache in caches)
        assert first is None or all(torch.equal(first, other) for other in others)


@needs_kernels
@pytest.mark.parametrize("method", METHODS)
def test_kernels_keep_what_torch_keeps(method: str, pair: Any, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="fp32", backend="kernels")
    mine, wanted = (filled(one, settings(method)) for one in (model, pair[1]))
    for layer in range(model.num_layers):
        for values in (False, True):
            found = mine._numbers(layer, 1, STAY, values)
            close(found, wanted._numbers(layer, 1, STAY, values).float(), 1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_goes_its_own_way(backend: str, pair: Any, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="fp32", backend=backend)
    cache = filled(model, settings("h2o", kv_interval=4))
    other = cache.copy()
    for one, seed in ((cache, 3), (other, 4)):
        for step in range(6):
            one.evict(1)
            run(model, one, tokens(1, 1, seed=seed + step), [1])
    again = filled(model, settings("h2o", kv_interval=4))
    for step in range(6):
        again.evict(1)
        run(model, again, tokens(1, 1, seed=4 + step), [1])
    assert torch.equal(other._numbers(0, 1, STAY, False), again._numbers(0, 1, STAY, False))
    assert not torch.equal(other._numbers(0, 1, STAY, True), cache._numbers(0, 1, STAY, True))


def contents(cache: Any, first: int) -> list[Tensor]:
    """All that row 1 of a cache holds and knows, queries from a token on."""
    log, layers = cache._logs[1], range(len(cache._states[1]))
    numbers = [cache.dropped[1], cache._due[1] or -1, cache._counted[1], *log.ends]
    return [
        torch.tensor(numbers),
        *(
            cache._numbers(layer, 1, cache.num_slots(1), v)
            for layer in layers
            for v in (False, True)
        ),
        *(log.between(layer, first, log.ends[layer], 0).vectors for layer in layers),
        *(state for state in cache._states[1] if state is not None),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["h2o", "snapkv"])
@pytest.mark.parametrize("what", ["evict", "empty"])
def test_an_interruption_at_any_line_leaves_nothing_half_done(
    what: str, method: str, backend: str, tmp_path: Path
) -> None:
    """Evicting with queries that are still needed, and emptying a row that has evicted."""
    tiny_model("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="fp32", backend=backend)
    compression = settings(method, kv_recent=8, kv_interval=2)
    start = filled(model, compression)
    run(model, start, tokens(1, 2, seed=1), [1])

    def do(cache: Any) -> None:
        if what == "evict":
            cache.evict(1)
        else:
            cache.trim(1, 0)

    wanted = start.copy()
    do(wanted)
    for line in range(1, 2000):
        cache = start.copy()
        try:
            with interrupted_at(line):
                do(cache)
            return
        except KeyboardInterrupt:
            # As the engine does after an interruption.
            cache.trim(1, min(cache.length(1), LENGTH + 2))
            do(cache)
        first = max(cache._logs[1].first, wanted._logs[1].first)
        pairs = zip(contents(cache, first), contents(wanted, first), strict=True)
        assert all(torch.equal(*pair) for pair in pairs), line
    raise AssertionError("never whole")


@pytest.mark.parametrize("backend", BACKENDS)
def test_queries_are_forgotten(backend: str, tmp_path: Path) -> None:
    """Where nothing will be evicted any more none are kept; else those since the last eviction at most."""
    tiny_model("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="fp32", backend=backend)
    for options, most in (({"kv_budget": None, "kv_compression_ratio": 0.5}, 0), ({}, RECENT + 4)):
        for method in ("h2o", "snapkv"):
            cache = filled(model, settings(method, kv_interval=4, **options))
            for step in range(20):
                cache.evict(1)
                run(model, cache, tokens(1, 1, seed=step), [1])
            log = cache._logs[1]
            assert max(log.ends) - log.first <= most


def test_dtype_of_the_model_is_kept(tmp_path: Path) -> None:
    tiny_model("qwen3").save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="bf16", backend="torch")
    for method in METHODS:
        cache = filled(model, settings(method))
        assert {key.dtype for key in cache.keys} == {torch.bfloat16}
        assert run(model, cache, tokens(1, 1), [1]).logits.isfinite().all()
