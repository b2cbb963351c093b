"""Request of `benchmarks.kv`, and the settings of the cache that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from forerun.compression import METHODS, NO_COMPRESSION, Compression, KeptTokens
from forerun.engine.options import ModelOptions
from forerun.errors import ConfigError
from forerun.options import UNIQUE, FileName, changes, option, options, part

if TYPE_CHECKING:
    from forerun.report.result import Result

MOST_CONTEXT = 1 << 20
FULL = "full"

_Context = Annotated[int, Field(ge=64, le=MOST_CONTEXT)]
_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_Ratio = Annotated[float, Field(gt=0.0, lt=1.0)]
_Budget = Annotated[int, Field(ge=1, le=MOST_CONTEXT)]


@options
class KvRequest:
    """Find out what each setting of the cache costs in quality, and what it saves.

    Reads prompts of several lengths with the full cache, with one of int8 and int4, and with every method of
    eviction, and measures
    perplexity of what follows, which numbers hidden in the prompt are found, memory and tokens a second.
    All is generated or comes with Python; nothing is downloaded. Takes minutes with SmolLM2.
    """

    model: ModelOptions = part(
        default=ModelOptions, section="Model", without=("max_context", "kv_dtype")
    )
    methods: tuple[str, ...] = option(
        default=(),
        description="Methods of eviction, such as h2o,snapkv; all by default, none for precisions alone.",
        section="Settings (lists: 0.5,0.75; integers also 4k)",
    )
    kv_dtypes: tuple[str, ...] = Field(
        default=("int8", "int4"),
        description="Precisions of keys and values to compare with the usual one.",
    )
    combined: bool = Field(
        default=False, description="Measure each method in each of --kv-dtypes too."
    )
    ratios: Annotated[tuple[_Ratio, ...], UNIQUE] = Field(
        default=(0.5, 0.75), description="Shares of the prompt that are evicted after it."
    )
    budgets: Annotated[tuple[_Budget, ...], UNIQUE] = Field(
        default=(), description="Budgets in tokens, after the prompt and while decoding."
    )
    contexts: Annotated[tuple[_Context, ...], UNIQUE] = Field(
        default=(512, 1024, 2048), description="Tokens of the prompt."
    )
    depths: Annotated[tuple[_Share, ...], UNIQUE] = Field(
        default=(0.1, 0.3, 0.5, 0.7, 0.9),
        description="Where in the prompt needles lie: 0 at its beginning, 1 at its end.",
    )
    kept: KeptTokens = part(default=KeptTokens)
    needles: int = option(
        default=1,
        ge=1,
        le=64,
        description="Needles at each depth, each with its question.",
        section="Text",
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
    text: FileName | None = Field(
        default=None, description="A file to read instead of Python's help on its topics."
    )

    def __post_init__(self) -> None:
        for name in self.used_methods:
            METHODS.find(name)
        if self.timed_tokens > self.scored_tokens:
            raise ConfigError(
                f"timed_tokens is {self.timed_tokens} of {self.scored_tokens} scored_tokens; time as many "
                "as are scored at most."
            )

    @property
    def used_methods(self) -> tuple[str, ...]:
        """Methods of eviction that are measured."""
        return () if self.methods == NO_METHOD else self.methods or tuple(METHODS.names())

    @property
    def longest(self) -> int:
        """Tokens of the longest text, questions and answers included."""
        return max(self.contexts) + max(self.scored_tokens, LONGEST_QUESTION)


# In place of methods of eviction: precisions alone are compared.
NO_METHOD = ("none",)
# Tokens of a question and its answer, at most, where a token is a character.
LONGEST_QUESTION = 128


@dataclass(frozen=True)
class CacheSetting:
    """A setting of the cache.

    Args:
        label: its name in tables.
        kv_dtype: precision of keys and values.
        compression: eviction.
    """

    label: str
    kv_dtype: str = "auto"
    compression: Compression = NO_COMPRESSION


def run(request: KvRequest) -> Result:
    """Each setting of the cache, beside the full one.

    Raises:
        ConfigError: for contexts that the model does not have.
        Interrupted: with the rows until then.
    """
    from benchmarks.kv.report import answer

    return answer(request)


def settings_of(request: KvRequest) -> list[CacheSetting]:
    """The full cache, then all others.

    Raises:
        ConfigError: for a budget that the tokens that always stay exceed.
    """
    precisions = [CacheSetting(f"kv_dtype {name}", name) for name in request.kv_dtypes]
    evicting = list(_evicting(request))
    both = [
        CacheSetting(f"{setting.label}, {name}", name, setting.compression)
        for setting in evicting
        for name in (request.kv_dtypes if request.combined else ())
    ]
    return [CacheSetting(FULL), *precisions, *evicting, *both]


def _evicting(request: KvRequest) -> Iterator[CacheSetting]:
    sizes: dict[str, dict[str, Any]] = {
        **{f"ratio {ratio:g}": {"kv_compression_ratio": ratio} for ratio in request.ratios},
        **{f"budget {budget}": {"kv_budget": budget} for budget in request.budgets},
    }
    for method in request.used_methods:
        for label, size in sizes.items():
            compression = Compression(kv_method=method, **changes(request.kept), **size)
            yield CacheSetting(f"{method} {label}", compression=compression)
