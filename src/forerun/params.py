"""What a request asks of the sampler: one frozen dataclass, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from forerun.errors import ConfigError, UnknownNameError

TokenMask = Callable[[Sequence[int], Sequence[int]], Any]
"""`mask(committed_ids, drafted_ids)` returns the tokens allowed next, bool [V], or None for all."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and when a request ends.

    Every option is exact under speculation: it is applied to each drafted prefix as plain decoding
    would apply it. Applied in this order: penalties, logit bias and masks, temperature, top-k,
    top-p, min-p.

    Args:
        temperature: 0 takes the most likely token (the lowest id on ties).
        top_k: keep the k most likely tokens (and ties of the last); 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        min_p: keep tokens with at least this share of the largest probability.
        repetition_penalty: divides positive, multiplies negative logits of every token seen
            in prompt or output (CTRL, arXiv 1909.05858); 1 is off.
        presence_penalty, frequency_penalty: subtracted once, or once an occurrence, from the logits
            of tokens in the output; 0 is off.
        logit_bias: added to the logits, by token id.
        allowed_token_ids: nothing else may be emitted; None allows all.
        banned_token_ids: never emitted.
        mask: a hook that sees committed and drafted tokens and returns the allowed ones.
        seed: makes the output a function of the request; None draws one.
        max_tokens: emitted tokens at most; None means up to the context's end.
        stop: strings at which the text is cut.
        stop_token_ids: tokens that end the request and stay in its ids.
        ignore_eos: go on after an end-of-text token.
        logprobs: None for none, else the number of alternatives reported beside each token.
        logprobs_mode: `raw` distribution of the model, or `processed`, as drawn from.

    Raises:
        ConfigError: for a value out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    mask: TokenMask | None = None
    seed: int | None = None
    max_tokens: int | None = 128
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logprobs_mode: str = "raw"

    def __post_init__(self) -> None:
        for name, low, high, low_open in _RANGES:
            value = getattr(self, name)
            if value is None:
                continue
            inside = (low < value if low_open else low <= value) and value <= high
            if not inside or math.isnan(value) or value in (math.inf, -math.inf):
                bracket = "(" if low_open else "["
                raise ConfigError(f"{name} is {value}; it must lie in {bracket}{low:g}, {high:g}].")
        if self.logprobs_mode not in ("raw", "processed"):
            raise UnknownNameError("logprobs_mode", self.logprobs_mode, ("raw", "processed"))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ConfigError("allowed_token_ids is empty; leave it out to allow every token.")
        if any(not text for text in self.stop):
            raise ConfigError("an empty stop string would stop at once; give text or leave it out.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Make one from a mapping; an unknown key is an error that lists the known ones."""
        known = [option.name for option in fields(cls)]
        for name in values:
            if name not in known:
                raise UnknownNameError("sampling option", name, known)
        return cls(**values)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def depends_on_history(self) -> bool:
        """Whether the row of a prefix is more than a function of its logits."""
        penalized = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return bool(penalized) or self.mask is not None


_RANGES = (
    # name, lowest, highest, whether the lowest itself is refused
    ("temperature", 0.0, 100.0, False),
    ("top_k", 0, 2**31, False),
    ("top_p", 0.0, 1.0, True),
    ("min_p", 0.0, 1.0, False),
    ("repetition_penalty", 0.0, 100.0, True),
    ("presence_penalty", -100.0, 100.0, False),
    ("frequency_penalty", -100.0, 100.0, False),
    ("seed", -(2**63), 2**63 - 1, False),
    ("max_tokens", 1, 2**31, False),
    ("logprobs", 0, 1024, False),
)
