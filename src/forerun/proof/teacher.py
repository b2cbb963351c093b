"""The target's own rows after every prefix of finished outputs, in one pass without any drafting."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several

from torch import Tensor

from forerun.contracts import Cache, CausalLM
from forerun.core import Sequence
from forerun.models.running import PREFILL_CHUNK, run_rows
from forerun.sampling import Prefix, warp

# Logits held at once; a long vocabulary takes fewer positions a pass.
_MOST_LOGITS = 2**26


def teacher_forced(
    target: CausalLM, cache: Cache, sequences: Several[Sequence]
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Run whole sequences through the target, a stretch of positions after the other.

    Args:
        target: the model.
        cache: empty, with at least as many rows as there are sequences.
        sequences: finished, with outputs of one length.

    Yields:
        The index of a sequence, the index of the first output token of a stretch, the logits for
        the stretch [n, V], and the rows [n, V] that its tokens are drawn from.
    """
    rows = range(len(sequences))
    _prefill(target, cache, [one.token_ids[: one.num_prompt_tokens - 1] for one in sequences])
    length = sequences[0].num_output_tokens
    width = max(1, _MOST_LOGITS // (len(sequences) * target.vocab_size))
    for start in range(0, length, width):
        count = min(width, length - start)
        inputs = []
        for one in sequences:
            first = one.num_prompt_tokens - 1 + start
            inputs.append(one.token_ids[first : first + count])
        logits = run_rows(target, cache, list(rows), inputs).logits
        assert logits is not None
        for index, one in enumerate(sequences):
            yield index, start, logits[index], warp(logits[index], _prefixes(one, start, count))


def _prefill(target: CausalLM, cache: Cache, prompts: list[list[int]]) -> None:
    """All prompts at once, chunk by chunk."""
    longest = max(len(prompt) for prompt in prompts)
    for start in range(0, longest, PREFILL_CHUNK):
        chunks = [prompt[start : start + PREFILL_CHUNK] for prompt in prompts]
        rows = [row for row, chunk in enumerate(chunks) if chunk]
        run_rows(target, cache, rows, [chunks[row] for row in rows], logits_for="none")


def _prefixes(sequence: Sequence, start: int, count: int) -> list[Prefix]:
    """What stood before each output token of a stretch, as the sampler saw it."""
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    output = tuple(sequence.output_ids)
    before = Sequence(
        sequence.request_id, prompt, len(prompt), sequence.params, sequence.seed, sequence.row
    )
    return [Prefix(before, output[:index]) for index in range(start, start + count)]
