"""Why speculative and plain output differ at a token: rounding of a near-tie, or a defect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.core import Batch, Request
from forerun.models.running import prefill
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, warp

# How many roundings of the largest logit another order of additions may amount to. Sums in float32
# and float64 round at every addition; 16-bit formats are summed in float32 and round only what
# is stored, a few times a layer and in both directions. These are allowances, not bounds.
ROUNDINGS = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 64, torch.float64: 64}
# The sums of top-p are taken in float32 whatever the model's dtype.
_SUMS = ROUNDINGS[torch.float32] * torch.finfo(torch.float32).eps

NUMERICS, DEFECT = "numerics", "defect"


@dataclass(frozen=True)
class Difference:
    """The first position where two outputs differ.

    Args:
        index: of the output token.
        token_id, text: what speculation emitted there; None where it had ended.
        plain_token_id, plain_text: what plain decoding emitted.
        margin: gap between the two largest raw logits of the target there.
        gap: how far the worse of the two tokens lies below the best, in the scores that decide:
            logits or, with a seed, log probabilities plus noise. None: the token is impossible, even
            if rounding moves the edge of top-k, top-p or min-p.
        tolerance: the gap that float rounding explains, see `tolerance`.
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
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    plain_ids: Sequence[int],
    params: SamplingParams,
) -> Difference | None:
    """The first difference and its explanation; None where the outputs are the same.

    The logits come from one pass of the target over the plain output up to there, the texts of tokens
    from the tokenizer, if any. Rounding explains a difference where it could produce both tokens: at
    a near-tie, or where it includes or excludes one of them at the edge of top-k, top-p or min-p.
    """
    index = _first_index(token_ids, plain_ids)
    if index is None:
        return None
    tokens = [ids[index] if index < len(ids) else None for ids in (token_ids, plain_ids)]
    logits = _logits_after(target, [*prompt_ids, *plain_ids[:index]])
    best = logits.double().topk(2).values
    allowed = tolerance(logits, target.dtype, params)
    row = _Row.of(logits, prompt_ids, plain_ids[:index], params)
    gap = row.gap(tokens, allowed)
    texts = [_text_of(tokenizer, token) for token in tokens]
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

    In 16-bit formats that is coarse: where the largest logit is 20, about 1.25 in bfloat16 and 0.16
    in float16, against 0.00015 in float32. `numerics` then means that rounding could have done it,
    and a defect that moves logits by less goes unseen; to rule one out, compare in float32.
    """
    # Tokens that the model itself excludes have -inf, which is not rounded.
    largest = torch.nan_to_num(logits, 0.0, 0.0, 0.0).abs().max().item()
    scale = 1.0 if params.greedy else params.temperature
    return ROUNDINGS[dtype] * torch.finfo(dtype).eps * largest / scale


def could_be_drawn(
    token: int,
    logits: Tensor,
    dtype: torch.dtype,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    params: SamplingParams,
) -> bool:
    """True if a token has any probability after these ids, when rounding may move the edge of top-k,
    top-p or min-p; `logits` are the raw ones there, [V]."""
    row = _Row.of(logits, prompt_ids, output_ids, params)
    return row.gap([token], tolerance(logits, dtype, params)) is not None


@dataclass(frozen=True)
class _Row:
    """The scores that decide about one token.

    Args:
        adjusted: logits after penalties, bias and masks, up to a constant, float64 [V].
        scores: the same divided by the temperature, with the noise of the seed.
        params: of the request.
    """

    adjusted: Tensor
    scores: Tensor
    params: SamplingParams

    @classmethod
    def of(
        cls,
        logits: Tensor,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        params: SamplingParams,
    ) -> _Row:
        open_params = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        token_ids = [*prompt_ids, *output_ids]
        adjusted = _log_warp(logits.double(), token_ids, len(prompt_ids), open_params)
        scores = adjusted if params.greedy else adjusted / params.temperature
        if not params.greedy and params.seed is not None:
            noise = Randomness().gumbel(params.seed, len(token_ids), len(scores), scores.device)
            scores = scores + noise
        return cls(adjusted, scores, params)

    def candidates(self, adjusted: Tensor, slack: float = 0.0) -> Tensor:
        """Tokens that top-k, top-p and min-p leave of these logits, as bool [V]."""
        params = self.params
        if params.greedy:
            return torch.isfinite(adjusted)
        # Without top-p there is no sum that could round.
        top_p = min(max(params.top_p + slack, 1e-9), 1.0) if params.top_p < 1 else 1.0
        cut = SamplingParams(
            temperature=params.temperature, top_k=params.top_k, top_p=top_p, min_p=params.min_p
        )
        return torch.isfinite(_log_warp(adjusted, [0], 1, cut))

    def gap(self, tokens: Sequence[int | None], allowed: float) -> float | None:
        """Distance of the worse of the tokens below the best; None where a token is impossible, or
        missing because an output has ended.

        Each token counts at its best: as it is, or where rounding includes or excludes one of the
        tokens. Rounding moves only the edges here, not the scores.
        """
        step = allowed if self.params.greedy else allowed * self.params.temperature
        readings = [self.candidates(self.adjusted)]
        emitted = [token for token in tokens if token is not None]
        for token in emitted:
            readings += [self._including(token, step), self._excluding(token, step)]
        gaps = []
        for token in emitted:
            best = [self.scores[reading].max() for reading in readings if reading[token]]
            if not best:
                return None
            gaps.append((min(best) - self.scores[token]).item())
        return max(gaps) if len(emitted) == len(tokens) else None

    def _including(self, token: int, step: float) -> Tensor:
        """The candidates if rounding has lowered all tokens that rank above this one."""
        before = self.adjusted >= self.adjusted[token]
        before[token] = False
        return self.candidates(torch.where(before, self.adjusted - step, self.adjusted), _SUMS)

    def _excluding(self, token: int, step: float) -> Tensor:
        """The candidates if rounding has raised all tokens that can rank above this one."""
        before = self.adjusted + step >= self.adjusted[token]
        before[token] = False
        return self.candidates(torch.where(before, self.adjusted + step, self.adjusted), -_SUMS)


def _log_warp(
    row: Tensor, token_ids: list[int], num_prompt_tokens: int, params: SamplingParams
) -> Tensor:
    request = Request(0, token_ids, num_prompt_tokens, params, params.seed or 0)
    return warp(row[None], [Prefix(request)])[0].log()


def _text_of(tokenizer: Any, token: int | None) -> str | None:
    return None if token is None or tokenizer is None else tokenizer.decode([token])


def _first_index(left: Sequence[int], right: Sequence[int]) -> int | None:
    for index, (token, other) in enumerate(zip(left, right, strict=False)):
        if token != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def _logits_after(target: CausalLM, token_ids: list[int]) -> Tensor:
    cache = target.new_cache(1, len(token_ids))
    prefill(target, cache, 0, token_ids[:-1])
    logits = target.forward(Batch.after(cache, [0], [token_ids[-1:]]), cache).logits
    assert logits is not None
    # Float64, which the scores are in, does not exist on every device.
    return logits[0, 0].cpu()
