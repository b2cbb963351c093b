"""Plain autoregressive decoding: the oracle of the tests and the baseline of every comparison.

It shares the model, the cache and the sampler with the engine and nothing else: no draft, no
verification, no round.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from forerun.contracts import Cache, CausalLM
from forerun.core import Origin, Verdict
from forerun.engine.requests import Running, TokenEvent, token_logprobs
from forerun.models.running import prefill, run_rows
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw_plain, log_probs, warp


def stream_plain(
    target: CausalLM, cache: Cache, one: Running, randomness: Randomness
) -> Iterator[TokenEvent]:
    """Decode one request token by token; `one` holds what was generated so far."""
    sequence, params = one.sequence, one.sequence.params
    started = perf_counter()
    prefill(target, cache, sequence.row, sequence.token_ids[:-1])
    one.stats.prefill_seconds += perf_counter() - started
    while sequence.finish_reason is None:
        started = perf_counter()
        newest = [sequence.token_ids[-1]]
        logits = run_rows(target, cache, [sequence.row], [newest], logits_for="last").logits
        assert logits is not None
        prefix = Prefix(sequence)
        probs = warp(logits[:, 0], [prefix])
        token = draw_plain(probs, prefix, randomness)
        if params.logprobs is not None:
            rows = log_probs(logits[:, 0], probs, params.logprobs_mode)
            one.logprobs += token_logprobs(rows, (token,), params.logprobs)
        one.cut(Verdict((), (token,), (Origin.PLAIN,)))
        sequence.extend([token])
        one.origins.append(Origin.PLAIN)
        one.stats.num_plain_rounds += 1
        one.stats.num_emitted_tokens += 1
        one.stats.seconds += perf_counter() - started
        yield from one.hand_out()
