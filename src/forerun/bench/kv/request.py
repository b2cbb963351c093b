"""Request of `forerun bench kv`, and the settings of the cache that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from forerun.compression import METHODS, Compression
from forerun.errors import ConfigError, UnknownNameError
from forerun.options import options, pick

MOST_CONTEXT = 1 << 20
FULL = "full"

_Context = Annotated[int, Field(ge=64, le=MOST_CONTEXT)]
_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_Ratio = Annotated[float, Field(gt=0.0, lt=1.0)]
_Budget = Annotated[int, Field(ge=1, le=MOST_CONTEXT)]


@options
class Request:
    """Settings of the cache to measure, and the texts to measure them on.

    Raises:
        ConfigError: for a number out of range, or no setting beside the full cache.
        UnknownNameError: for a method that does not exist.
    """

    methods: tuple[str, ...] = Field(
        default=(),
        description="Methods of eviction, such as h2o,snapkv; all by default, none for precisions alone.",
    )
    kv_dtypes: tuple[str, ...] = Field(
        default=("int8", "int4"),
        description="Precisions of keys and values to compare with the usual one.",
    )
    combined: bool = Field(
        default=False, description="Measure each method in each of --kv-dtypes too."
    )
    ratios: tuple[_Ratio, ...] = Field(
        default=(0.5, 0.75), description="Shares of the prompt that are evicted after it."
    )
    budgets: tuple[_Budget, ...] = Field(
        default=(), description="Budgets in tokens, after the prompt and while decoding."
    )
    contexts: tuple[_Context, ...] = Field(
        default=(512, 1024, 2048), description="Tokens of the prompt."
    )
    depths: tuple[_Share, ...] = Field(
        default=(0.1, 0.3, 0.5, 0.7, 0.9),
        description="Where in the prompt needles lie: 0 at its beginning, 1 at its end.",
    )
    needles: int = Field(
        default=1, ge=1, le=64, description="Needles at each depth, each with its question."
    )
    scored_tokens: int = Field(
        default=256, ge=1, le=MOST_CONTEXT, description="Tokens behind the prompt that are scored."
    )
    timed_tokens: int = Field(
        default=32,
        ge=1,
        le=MOST_CONTEXT,
        description="Of these, how many are run one by one, in turns with the full cache, and timed.",
    )
    seed: int = Field(default=0, ge=0, le=2**31, description="Of the needles.")

    def __post_init__(self) -> None:
        for name in () if self.methods == NO_METHOD else self.methods:
            if name not in METHODS.names():
                raise UnknownNameError("kv_method", name, METHODS.names())
        if self.timed_tokens > self.scored_tokens:
            raise ConfigError(
                f"timed_tokens is {self.timed_tokens} of {self.scored_tokens} scored_tokens; time as many "
                "as are scored at most."
            )

    @property
    def longest(self) -> int:
        """Tokens of the longest text, questions and answers included."""
        return max(self.contexts) + max(self.scored_tokens, LONGEST_QUESTION)


# In place of methods of eviction: precisions alone are compared.
NO_METHOD = ("none",)
# Tokens of a question and its answer, at most, where a token is a character.
LONGEST_QUESTION = 128


@dataclass(frozen=True)
class Setting:
    """A setting of the cache.

    Args:
        label: how tables call it.
        load: arguments of `forerun.load` that make it.
    """

    label: str
    load: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compression(self) -> Compression:
        """Eviction of the setting."""
        return pick(Compression, self.load.get("compression", {}))

    @property
    def model(self) -> dict[str, Any]:
        """The arguments that the loaded model depends on."""
        return {name: value for name, value in self.load.items() if name != "compression"}


def settings_of(request: Request, common: Mapping[str, Any]) -> list[Setting]:
    """The full cache, then all others.

    Args:
        common: options of `Compression` that all methods share, such as the tokens that always stay.

    Raises:
        ConfigError: for a budget that the tokens that always stay exceed.
    """
    precisions = [Setting(f"kv_dtype {name}", {"kv_dtype": name}) for name in request.kv_dtypes]
    evicting = list(_evicting(request, common))
    both = [
        Setting(f"{one.label}, {name}", {**one.load, "kv_dtype": name})
        for one in evicting
        for name in (request.kv_dtypes if request.combined else ())
    ]
    return [Setting(FULL), *precisions, *evicting, *both]


def _evicting(request: Request, common: Mapping[str, Any]) -> Iterator[Setting]:
    if request.methods == NO_METHOD:
        return
    for method in request.methods or METHODS.names():
        sizes: list[tuple[str, dict[str, Any]]] = [
            *((f"ratio {ratio:g}", {"kv_compression_ratio": ratio}) for ratio in request.ratios),
            *((f"budget {budget}", {"kv_budget": budget}) for budget in request.budgets),
        ]
        for label, size in sizes:
            compression = {"kv_method": method, **common, **size}
            pick(Compression, compression)
            yield Setting(f"{method} {label}", {"compression": compression})
