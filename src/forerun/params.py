"""Sampling parameters of one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from forerun.errors import ConfigError
from forerun.flags import Flag, Given, part_flags
from forerun.options import Part, Text, changes, from_mapping, option, options, part, schema_of

TokenMask = Callable[[Sequence[int], Sequence[int]], Any]
"""A function `mask(committed_ids, drafted_ids)` that returns the tokens allowed next.

It returns one bool (or 0 and 1) for each token, [V], or the ids of the allowed tokens, or None for
all. It may have a method `forced(committed_ids)` that returns the tokens next to come where it allows no
others; they are drafted.
"""

# Below this temperature, float32 can no longer tell the divided logits apart.
LOWEST_TEMPERATURE = 1e-5


class Warp(NamedTuple):
    """The steps from a row of adjusted logits to probabilities, in their order."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _not_tiny(temperature: float) -> float:
    if 0.0 < temperature < LOWEST_TEMPERATURE:
        raise ValueError(f"it must be 0 or lie in [{LOWEST_TEMPERATURE:g}, 100]; use 0 for greedy")
    return temperature


def _listed(stop: Any) -> Any:
    return (stop,) if isinstance(stop, str) else () if stop is None else stop


TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
# Finite also when it is added to a logit in float32.
Bias = Annotated[float, Field(ge=-1e30, le=1e30)]


@options
class SamplingParams:
    """Sampling parameters of one request: the way its tokens are drawn, and its end.

    Every option is exact under speculation: it is applied to each drafted prefix as plain decoding
    would apply it. The order is: penalties, logit bias and masks, temperature, top-k, top-p, min-p.
    The repetition penalty is that of CTRL, arXiv 1909.05858. With `max_tokens=None` the output goes
    on to the end of the context.
    """

    temperature: Annotated[float, AfterValidator(_not_tiny)] = Field(
        default=1.0,
        ge=0.0,
        le=100.0,
        description="0 takes the most likely token (the lowest id on ties); else 1e-5 to 100.",
    )
    top_k: int = Field(
        default=0,
        ge=0,
        le=2**31,
        description="Keep the k most likely tokens (and ties of the last); 0 keeps all.",
    )
    top_p: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="Keep the most likely tokens until their probability reaches this.",
    )
    min_p: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Keep tokens with this share of the largest probability.",
    )
    repetition_penalty: float = Field(
        default=1.0,
        gt=0.0,
        le=100.0,
        description="Divides positive, multiplies negative logits of tokens in prompt or output.",
    )
    presence_penalty: float = Field(
        default=0.0,
        ge=-100.0,
        le=100.0,
        description="Subtracted from the logits of tokens in the output.",
    )
    frequency_penalty: float = Field(
        default=0.0, ge=-100.0, le=100.0, description="The same, once an occurrence."
    )
    logit_bias: Mapping[TokenId, Bias] = Field(
        default_factory=dict, description="Added to a token's logit."
    )
    allowed_token_ids: tuple[TokenId, ...] | None = Field(
        default=None, description="Emit nothing else, e.g. 11,42."
    )
    banned_token_ids: tuple[TokenId, ...] = Field(default=(), description="Never emit these.")
    mask: SkipJsonSchema[TokenMask | None] = Field(
        default=None,
        description="A function of committed and drafted tokens that returns the allowed ones.",
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        le=2**63 - 1,
        description="Makes the output a function of the request (rules auto and coupled).",
    )
    max_tokens: int | None = Field(
        default=128,
        ge=1,
        le=2**31,
        description="Tokens of output at most.",
    )
    stop: Annotated[tuple[Text, ...], BeforeValidator(_listed)] = option(
        default=(),
        description="Cut the text before this string, or end after this special token.",
        repeat=True,
    )
    stop_token_ids: tuple[TokenId, ...] = Field(
        default=(), description="End after one of these tokens, which stays in the ids."
    )
    ignore_eos: bool = Field(default=False, description="Go on after an end-of-text token.")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="Report each token's log probability and N alternatives.",
    )
    logprobs_mode: Literal["raw", "processed"] = option(
        default="raw",
        description="raw: of the model's own distribution, or processed: as drawn from.",
        requires=("logprobs",),
    )

    def __post_init__(self) -> None:
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
        """Make parameters from a mapping; an unknown key is an error that lists the known ones."""
        return from_mapping(cls, values)

    @cached_property
    def warp(self) -> Warp:
        return Warp(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def greedy(self) -> bool:
        return self.warp.greedy

    @cached_property
    def adjusts(self) -> bool:
        """True if logits change before they are warped: by penalties, bias, bans or a mask."""
        lists = self.logit_bias or self.banned_token_ids or self.allowed_token_ids is not None
        return bool(lists) or self.penalizes or self.mask is not None

    @property
    def penalizes(self) -> bool:
        """True if any penalty is on."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1.0)
        return any(penalties)


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams`, for type checkers."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Iterable[int] | None
    banned_token_ids: Iterable[int]
    mask: TokenMask | None
    seed: int | None
    max_tokens: int | None
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int]
    ignore_eos: bool
    logprobs: int | None
    logprobs_mode: Literal["raw", "processed"]


# Parameters that a model may recommend.
RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
# Parameters that say when a request ends and what is reported, not how tokens are drawn.
_NOT_SAMPLING = frozenset(
    ("max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "logprobs_mode")
)


# Origins of parameters that were not given.
MODELS_OWN, DEFAULT = "the model's own", "the default"


def sampling(usual: SamplingParams, without: Sequence[str] = ()) -> Any:
    """A field of a request that holds the sampling parameters that were given, by name.

    Args:
        usual: those that hold for the others, unless the model recommends some; see `settled`.
        without: parameters that are no options of the request.
    """

    def flags(_: Any, inner: Part) -> list[Flag]:
        own = part_flags(usual, inner)
        shown = {name: f"the model's own, or {getattr(usual, name):g}" for name in RECOMMENDED}
        return [replace(f, use=replace(f.use, shown=shown.get(f.name, ""))) for f in own]

    def given_ones(_: Any, given: Given) -> dict[str, Any]:
        names = given.values.keys() & schema_of(SamplingParams).keys() - {*without}
        values = {name: given.values[name] for name in sorted(names)}
        replace(usual, **values)
        return values

    default: Mapping[str, Any] = {}
    return part(default=default, section="Sampling", without=without, flags=flags, build=given_ones)


def settled(
    given: Mapping[str, Any], recommended: Mapping[str, Any], usual: SamplingParams
) -> tuple[SamplingParams, dict[str, str]]:
    """Sampling parameters of a request, and the origins of those that were not given, by name.

    Args:
        given: those that were given.
        recommended: those that the model recommends.
        usual: all others.
    """
    own = {name: value for name, value in recommended.items() if name not in given}
    origins = {name: DEFAULT for name in RECOMMENDED if name not in given}
    return replace(usual, **own, **given), origins | dict.fromkeys(own, MODELS_OWN)


def in_words(params: SamplingParams, origins: Mapping[str, str] | None = None) -> str:
    """Sentence on how tokens are drawn.

    Args:
        origins: origins of parameters that were not given, by name.
    """
    names = [name for name in changes(params) if name not in _NOT_SAMPLING]
    shown = {name: _value(getattr(params, name)) for name in names}
    if params.greedy:
        # Nothing that filters or shapes a row changes its largest entry.
        for name in ("temperature", "top_k", "top_p", "min_p"):
            shown.pop(name, None)
        shown = {"greedy": "(temperature 0)"} | shown
    else:
        shown = {"temperature": f"{params.temperature:g}"} | shown
    groups: dict[str, list[str]] = {}
    for name, value in shown.items():
        origin = (origins or {}).get("temperature" if name == "greedy" else name, "")
        groups.setdefault(origin, []).append(f"{name} {value}")
    return "; ".join(
        ", ".join(texts) + (origin and f" ({origin})") for origin, texts in sorted(groups.items())
    )


def _value(value: object) -> str:
    if isinstance(value, float | int):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return f"of {len(value)} tokens" if hasattr(value, "__len__") else "on"
