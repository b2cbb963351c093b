"""Plain autoregressive decoding: the oracle of the tests and the baseline of every comparison.

It shares the model, the cache and the sampler with the engine and nothing else: no draft, no
verification, no round.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from forerun.contracts import Cache, CausalLM, Eviction
from forerun.core import Batch, Origin, PlainReason, Verdict
from forerun.engine.requests import Running, TokenEvent, TokenLogprob, token_logprobs
from forerun.models.running import prefill_chunks
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw_plain, log_probs, warp


def decode_plain(
    target: CausalLM,
    cache: Cache,
    running: Running,
    randomness: Randomness,
    eviction: Eviction,
) -> Iterator[TokenEvent]:
    """Decode one request token by token.

    Args:
        target: the model.
        cache: its cache.
        running: the request, with the tokens generated so far.
        randomness: source of random numbers.
        eviction: the cache's.
    """
    request = running.request
    started = perf_counter()
    for _ in prefill_chunks(target, cache, [request.row], [request.token_ids[:-1]]):
        eviction.commit(request.row)
    running.stats.prefill_seconds += perf_counter() - started
    while not running.finished:
        started = perf_counter()
        eviction.evict(request.row)
        token, logprobs = _next_token(target, cache, running, randomness)
        running.commit(running.outcome(Verdict((), (token,), (Origin.PLAIN,))), logprobs)
        running.stats.count_plain(PlainReason.ASKED)
        running.stats.num_emitted_tokens += 1
        running.stats.seconds += perf_counter() - started
        yield from running.events(running.num_output_tokens - 1)


def _next_token(
    target: CausalLM, cache: Cache, running: Running, randomness: Randomness
) -> tuple[int, list[TokenLogprob]]:
    """The token after a request's newest one, and its log probability if it is wanted."""
    request, params = running.request, running.request.params
    batch = Batch.after(cache, [request.row], [request.token_ids[-1:]], logits_for="last")
    logits = target.forward(batch, cache).logits
    assert logits is not None
    prefix = Prefix(request)
    probs = warp(logits[:, 0], [prefix])
    token = draw_plain(probs, prefix, randomness)
    if params.logprobs is None:
        return token, []
    values = log_probs(logits[:, 0], probs, params.logprobs_mode)
    return token, token_logprobs(values, (token,), params.logprobs)
