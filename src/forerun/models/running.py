"""Prefill of targets and draft models: the prefix that a row shares with a prompt, and the rest in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forerun.contracts import Cache, CausalLM
from forerun.core import Batch, ForwardOutput

PREFILL_CHUNK = 512


def prefill_chunks(
    model: CausalLM,
    cache: Cache,
    rows: Sequence[int],
    token_ids: Sequence[Sequence[int]],
    hidden_layers: tuple[int, ...] = (),
) -> Iterator[tuple[Batch, ForwardOutput]]:
    """Append committed tokens to rows side by side, one chunk of each row at a time, without logits.

    Args:
        model: the model to run.
        cache: its cache, to which the tokens are appended.
        rows: rows of the cache.
        token_ids: tokens for each row; may be empty.
        hidden_layers: layers whose hidden states to return.

    Yields:
        Each chunk after it has run, and its hidden states.
    """
    for start in range(0, max(map(len, token_ids), default=0), PREFILL_CHUNK):
        chunks = [tokens[start : start + PREFILL_CHUNK] for tokens in token_ids]
        left = [index for index, chunk in enumerate(chunks) if chunk]
        batch = Batch.after(
            cache,
            [rows[index] for index in left],
            [chunks[index] for index in left],
            hidden_layers=hidden_layers,
            logits_for="none",
        )
        yield batch, model.forward(batch, cache)


def common_prefix(held: list[int], token_ids: list[int]) -> int:
    """Number of tokens in the longest common prefix of two texts."""
    limit = min(len(held), len(token_ids))
    if held[:limit] == token_ids[:limit]:
        return limit
    return next(at for at in range(limit) if held[at] != token_ids[at])


def prefill(model: CausalLM, cache: Cache, row: int, token_ids: Sequence[int]) -> None:
    """Append committed tokens to one row, chunk by chunk."""
    for _ in prefill_chunks(model, cache, [row], [token_ids]):
        pass
