"""Computes the target's rows after every prefix of finished outputs, without drafting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from forerun.contracts import Cache, CausalLM
from forerun.core import Batch, Request
from forerun.models.running import prefill_chunks
from forerun.sampling import Prefix, warp

# Most logits held at once; with a large vocabulary, a pass takes fewer positions.
_MOST_LOGITS = 2**26


def teacher_forced(
    target: CausalLM, cache: Cache, requests: Sequence[Request]
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Run whole requests through the target, in stretches of positions.

    Args:
        target: the target model.
        cache: an empty cache with at least as many rows as there are requests.
        requests: finished requests with outputs of one length.

    Yields:
        The index of a request, the index of the first output token of a stretch, the logits for
        the stretch [n, V], and the rows [n, V] that its tokens are drawn from.
    """
    rows = range(len(requests))
    prompts = [request.token_ids[: request.num_prompt_tokens - 1] for request in requests]
    for _ in prefill_chunks(target, cache, rows, prompts):
        pass
    length = requests[0].num_output_tokens
    width = max(1, _MOST_LOGITS // (len(requests) * target.vocab_size))
    for start in range(0, length, width):
        count = min(width, length - start)
        inputs = []
        for request in requests:
            first = request.num_prompt_tokens - 1 + start
            inputs.append(request.token_ids[first : first + count])
        logits = target.forward(Batch.after(cache, rows, inputs), cache).logits
        assert logits is not None
        for index, request in enumerate(requests):
            probs = warp(logits[index], _prefixes(request, start, count))
            yield index, start, logits[index], probs


def _prefixes(request: Request, start: int, count: int) -> list[Prefix]:
    """The sampler's prefix of each output token of a stretch."""
    prompt = request.token_ids[: request.num_prompt_tokens]
    output = tuple(request.output_ids)
    before = Request(
        request.request_id, prompt, len(prompt), request.params, request.seed, request.row
    )
    return [Prefix(before, output[:index]) for index in range(start, start + count)]
