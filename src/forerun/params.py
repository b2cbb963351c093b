"""What a request asks of the sampler: one frozen dataclass, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.checks import (
    Check,
    normalize,
    number,
    one_of,
    optional,
    refuse_unknown,
    several,
    shown,
    switch,
    text,
    whole,
)
from forerun.errors import ConfigError

TokenMask = Callable[[Sequence[int], Sequence[int]], Any]
"""`mask(committed_ids, drafted_ids)` returns the tokens allowed next, bool [V], or None for all."""

# Below it, logits divided by the temperature leave the range in which float32 tells them apart.
LOWEST_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and when a request ends.

    Every option is exact under speculation: it is applied to each drafted prefix as plain decoding
    would apply it. Applied in this order: penalties, logit bias and masks, temperature, top-k,
    top-p, min-p.

    Args:
        temperature: 0 takes the most likely token (the lowest id on ties); else 1e-5 to 100.
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
        seed: makes the output a function of the request under the rules `auto` and `coupled`;
            None draws one.
        max_tokens: emitted tokens at most; None means up to the context's end.
        stop: strings at which the text is cut; one string stands for itself alone.
        stop_token_ids: tokens that end the request and stay in its ids.
        ignore_eos: go on after an end-of-text token.
        logprobs: None for none, else the number of alternatives reported beside each token.
        logprobs_mode: `raw` distribution of the model, or `processed`, as drawn from.

    Raises:
        ConfigError: for a value of a wrong type or out of range.
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
        normalize(self, _CHECKS)
        if self.allowed_token_ids is None:
            return
        if not self.allowed_token_ids:
            raise ConfigError("allowed_token_ids is empty; leave it out to allow every token.")
        if set(self.allowed_token_ids) <= set(self.banned_token_ids):
            raise ConfigError(
                "allowed_token_ids are all in banned_token_ids, which leaves no token; "
                "allow one that is not banned."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Make one from a mapping; an unknown key is an error that lists the known ones."""
        refuse_unknown("sampling option", values, cls)
        return cls(**values)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """Whether logits change before they are warped: by penalties, bias, bans or a mask."""
        lists = self.logit_bias or self.banned_token_ids or self.allowed_token_ids is not None
        return bool(lists) or self.penalizes or self.mask is not None

    @property
    def penalizes(self) -> bool:
        """Whether any penalty is on."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1.0)
        return any(penalties)


def _temperature(name: str, value: Any) -> float:
    found: float = number(0.0, 100.0)(name, value)
    if 0.0 < found < LOWEST_TEMPERATURE:
        raise ConfigError(
            f"{name} is {shown(value)}; it must be 0 or lie in [{LOWEST_TEMPERATURE:g}, 100]; "
            "use 0 for greedy."
        )
    return found


def _stops(name: str, value: Any) -> tuple[str, ...]:
    stops: tuple[str, ...] = several(text)(name, [value] if isinstance(value, str) else value)
    return stops


def _biases(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {shown(value)}; it must be a mapping of token ids to biases.")
    biases = {_TOKEN_ID(f"a key of {name}", token): bias for token, bias in value.items()}
    return {token: _BIAS(f"{name} of token {token}", bias) for token, bias in biases.items()}


def _hook(name: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigError(f"{name} is {shown(value)}; it must be a function of two token lists.")
    return value


_TOKEN_ID = whole(0, 2**31 - 1)
# Finite also when it is added to a logit in float32.
_BIAS = number(-1e30, 1e30)

_CHECKS: dict[str, Check] = {
    "temperature": _temperature,
    "top_k": whole(0, 2**31),
    "top_p": number(0.0, 1.0, above=True),
    "min_p": number(0.0, 1.0),
    "repetition_penalty": number(0.0, 100.0, above=True),
    "presence_penalty": number(-100.0, 100.0),
    "frequency_penalty": number(-100.0, 100.0),
    "logit_bias": _biases,
    "allowed_token_ids": optional(several(_TOKEN_ID)),
    "banned_token_ids": several(_TOKEN_ID),
    "mask": optional(_hook),
    "seed": optional(whole(-(2**63), 2**63 - 1)),
    "max_tokens": optional(whole(1, 2**31)),
    "stop": _stops,
    "stop_token_ids": several(_TOKEN_ID),
    "ignore_eos": switch,
    "logprobs": optional(whole(0, 1024)),
    "logprobs_mode": one_of(("raw", "processed")),
}
