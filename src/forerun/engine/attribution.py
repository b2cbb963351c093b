"""Why speculative and plain output differ at a place: rounding of a near-tie, or a defect."""

from __future__ import annotations

import math
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from forerun.core import CausalLM, Sequence
from forerun.models.running import prefill, run_rows
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, warp

# How many roundings of the largest logit the order of additions may amount to. Sums in float32
# and float64 round at every addition; 16-bit formats are summed in float32 and round only what
# is stored, a few times a layer and in both directions.
ROUNDINGS = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 64, torch.float64: 64}

NUMERICS, DEFECT = "numerics", "defect"


@dataclass(frozen=True)
class Difference:
    """The first place where two outputs differ.

    Args:
        index: of the output token.
        token_id, text: what speculation emitted there; None where it had ended.
        plain_token_id, plain_text: what plain decoding emitted.
        margin: gap between the two largest raw logits of the target at that place.
        gap: how far the worse of the two tokens lies below the best, in the scores that decide:
            logits, or under a seed log probabilities with their noise. None: not possible at all.
        tolerance: the gap that float rounding explains.
        explanation: `numerics` or `defect`.
    """

    index: int
    token_id: int | None
    text: str | None
    plain_token_id: int | None
    plain_text: str | None
    margin: float
    gap: float | None
    tolerance: float
    explanation: str


def first_difference(
    target: CausalLM,
    tokenizer: Any,
    prompt_ids: Several[int],
    token_ids: Several[int],
    plain_ids: Several[int],
    params: SamplingParams,
) -> Difference | None:
    """Find the first difference and attribute it; None where the outputs are the same.

    One pass of the target over the plain output up to there gives the logits. A token at the very
    edge of top-k or top-p can be let in or left out by rounding; that counts as a defect here.
    """
    index = _first_index(token_ids, plain_ids)
    if index is None:
        return None
    tokens = [ids[index] if index < len(ids) else None for ids in (token_ids, plain_ids)]
    logits = _logits_after(target, [*prompt_ids, *plain_ids[:index]])
    scores = deciding_scores(logits, prompt_ids, plain_ids[:index], params)
    best = logits.double().topk(2).values
    gap = _gap(scores, tokens)
    allowed = tolerance(logits, target.dtype, params)
    texts = [None if token is None else tokenizer.decode([token]) for token in tokens]
    return Difference(
        index=index,
        token_id=tokens[0],
        text=texts[0],
        plain_token_id=tokens[1],
        plain_text=texts[1],
        margin=(best[0] - best[1]).item(),
        gap=gap,
        tolerance=allowed,
        explanation=DEFECT if gap is None or gap > allowed else NUMERICS,
    )


def tolerance(logits: Tensor, dtype: torch.dtype, params: SamplingParams) -> float:
    """The gap between two scores [V] that rounding in `dtype` explains.

    A logit is a sum whose terms have the size of the largest one, up to cancellation: its error is
    counted in roundings of that. Temperature divides logits and errors alike.
    """
    largest = logits.abs().max().item()
    scale = 1.0 if params.greedy else params.temperature
    return ROUNDINGS[dtype] * torch.finfo(dtype).eps * largest / scale


def deciding_scores(
    logits: Tensor, prompt_ids: Several[int], output_ids: Several[int], params: SamplingParams
) -> Tensor:
    """What plain decoding takes the largest of, float64 [V]: after penalties, bias and masks, the
    logits (up to a constant) if greedy; with a seed, log probabilities plus its Gumbel noise."""
    if params.greedy:
        params = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        seed = None
    else:
        seed = params.seed
    sequence = Sequence(0, [*prompt_ids, *output_ids], len(prompt_ids), params, seed or 0)
    scores = warp(logits[None].double(), [Prefix(sequence)])[0].log()
    if seed is not None:
        scores = scores + Randomness().gumbel(seed, len(sequence), len(scores), scores.device)
    return scores


def _first_index(one: Several[int], other: Several[int]) -> int | None:
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def _gap(scores: Tensor, tokens: Several[int | None]) -> float | None:
    if None in tokens:
        return None
    gap = (scores.max() - scores[list(tokens)].min()).item()
    return gap if math.isfinite(gap) else None


def _logits_after(target: CausalLM, token_ids: list[int]) -> Tensor:
    cache = target.new_cache(1, len(token_ids))
    prefill(target, cache, 0, token_ids[:-1])
    logits = run_rows(target, cache, [0], [token_ids[-1:]], logits_for="last").logits
    assert logits is not None
    # Float64, which the scores are in, does not exist on every device.
    return logits[0, 0].cpu()
