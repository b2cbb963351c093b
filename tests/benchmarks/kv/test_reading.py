"""A given text is scored as the engine would decode it, whatever of the cache is evicted."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from benchmarks.kv.reading import CacheReading
from forerun.compression import NO_COMPRESSION, Compression
from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.engine.engine import Engine
from forerun.models.checkpoint import model_from_tensors
from tests.helpers import kernel_models
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.tiny_models import tiny_config, tiny_model, tokens

PROMPT: list[int] = tokens(1, 30, seed=2)[0].tolist()
SMALL = {"kv_recent": 4, "kv_sinks": 1, "kv_interval": 3}
COMPRESSIONS = {
    "full": NO_COMPRESSION,
    **{
        f"{name}-{'budget' if budget else 'ratio'}": Compression(
            kv_method=name,
            kv_budget=8 if budget else None,
            kv_compression_ratio=0.0 if budget else 0.5,
            **SMALL,
        )
        for name in ("h2o", "streaming_llm", "snapkv")
        for budget in (True, False)
    },
}
EVERY = pytest.mark.parametrize("name", COMPRESSIONS)


@cache
def model() -> CausalLM:
    weights = tiny_model("llama").state_dict()
    return model_from_tensors(
        tiny_config("llama"), weights, dtype="fp64", backend="torch", name="tiny"
    )


def reading_of(name: str, prompt: list[int] = PROMPT) -> CacheReading:
    reading = CacheReading(model(), COMPRESSIONS[name], 64)
    reading.read(prompt)
    return reading


@EVERY
def test_what_the_engine_decodes_greedily_is_the_most_likely_of_each_step(name: str) -> None:
    engine = Engine(model(), compression=COMPRESSIONS[name])
    output = list(engine.generate(PROMPT, temperature=0, max_tokens=20).token_ids)
    assert bool(reading_of(name).score(output).hits.all())
    # Which is not so with another cache: the output of a compressed one differs from the full one's.
    if name != "full":
        assert not bool(reading_of("full").score(output).hits.all())


@EVERY
def test_log_probabilities_are_the_engines(name: str) -> None:
    engine = Engine(model(), compression=COMPRESSIONS[name])
    completion = engine.generate(PROMPT, temperature=0, max_tokens=12, logprobs=0)
    assert completion.logprobs is not None
    wanted = torch.tensor([entry.logprob for entry in completion.logprobs], dtype=torch.float64)
    found = reading_of(name).score(completion.token_ids).nll
    torch.testing.assert_close(found, -wanted, rtol=0, atol=1e-9)


def test_the_full_cache_gives_the_plain_models_perplexity() -> None:
    rest = tokens(1, 15, seed=3)[0].tolist()
    text = PROMPT + rest
    cache = model().new_cache(1, len(text))
    logits = model().forward(Batch.after(cache, [0], [text]), cache).logits
    assert logits is not None
    rows = logits[0].log_softmax(-1)[len(PROMPT) - 1 : -1]
    wanted = -rows[range(len(rest)), rest]
    torch.testing.assert_close(reading_of("full").score(rest).nll, wanted, rtol=0, atol=1e-9)


@EVERY
def test_steps_and_prompts_in_pieces_change_nothing(name: str) -> None:
    rest = tokens(1, 15, seed=3)[0].tolist()
    wanted = reading_of(name).score(rest).nll
    pieces = reading_of(name, PROMPT[:11])
    pieces.read(PROMPT[11:12])
    pieces.read(PROMPT[12:])
    found = torch.cat(
        [*(pieces.step(token).score.nll for token in rest[:6]), pieces.score(rest[6:]).nll]
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@EVERY
def test_a_branch_leaves_the_prompt_as_it_was(name: str) -> None:
    rest = tokens(1, 15, seed=3)[0].tolist()
    reading = reading_of(name)
    scores = []
    for question in ([7, 7, 8], [], [5]):
        with reading.branch() as branch:
            branch.read(question or [1])
            scores.append(branch.score(rest).nll)
            assert branch.target is model()
    with reading.branch() as branch:
        assert torch.equal(branch.score(rest).nll, reading_of(name).score(rest).nll)
    with reading.branch() as branch:
        branch.read([7, 7, 8])
        assert torch.equal(branch.score(rest).nll, scores[0])


def test_bytes_are_those_of_the_tokens_that_are_held() -> None:
    full, budget = reading_of("full"), reading_of("h2o-budget")
    size = full.nbytes / (len(PROMPT) - 1)
    # Keys and values of 3 layers, 2 heads of 6 numbers of 8 bytes, and a position.
    assert size == 3 * 2 * 2 * 6 * 8 + 8
    budget.step(1)
    assert budget.nbytes == int(size * (8 + 1))


@needs_kernels
def test_the_kernels_are_read_too() -> None:
    kernels = kernel_models.model("llama")
    reading = CacheReading(kernels, NO_COMPRESSION, 64)
    reading.read(PROMPT)
    output = list(Engine(kernels).generate(PROMPT, temperature=0, max_tokens=8).token_ids)
    with reading.branch() as branch:
        assert bool(branch.score(output).hits.all())
