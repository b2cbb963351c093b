"""Compression of a target's cache by evicting tokens, which is approximate, and its options.

Importing it loads no torch: the command line derives flags and help from it.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from forerun.compression.methods import H2O, TOVA, Method, SnapKV, StreamingLLM
from forerun.errors import ConfigError
from forerun.options import changes, known, options
from forerun.registry import Registry

__all__ = ["METHODS", "NO_COMPRESSION", "Compression", "KeptTokens", "Method"]

METHODS = Registry(
    "kv_method",
    "forerun.kv_methods",
    {
        "h2o": H2O,
        "snapkv": SnapKV,
        "streaming_llm": StreamingLLM,
        "tova": TOVA,
    },
)


@options
class KeptTokens:
    """Tokens of a target's cache that no eviction takes, and how often it takes others."""

    kv_recent: int = Field(
        default=128, ge=1, le=2**31, description="Newest tokens that always stay."
    )
    kv_sinks: int = Field(default=4, ge=0, le=2**31, description="First tokens that always stay.")
    kv_interval: int = Field(
        default=64,
        ge=1,
        le=2**31,
        description="Tokens from one eviction to the next; meanwhile the cache grows beyond its budget.",
    )


@options
class Compression(KeptTokens):
    """Settings of the eviction from the target's cache, if any; eviction changes the output."""

    kv_method: Annotated[str | None, known("kv_method", METHODS.names)] = Field(
        default=None,
        description="Evict keys and values of the target (approximate): streaming_llm, h2o, snapkv or "
        "tova.",
    )
    kv_budget: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="Tokens that stay in each layer and head, after the prompt and while decoding.",
    )
    kv_compression_ratio: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="Share of the prompt's tokens that is evicted once it has been read.",
    )

    def __post_init__(self) -> None:
        given = changes(self)
        if self.kv_method is None:
            if given:
                raise ConfigError(
                    f"{', '.join(given)} says how a cache is compressed, and no kv_method is named; leave it "
                    f"out, or name one of {', '.join(METHODS.names())}."
                )
            return
        if self.kv_budget is None and not self.kv_compression_ratio:
            raise ConfigError(
                f"kv_method {self.kv_method!r} has nothing to evict; give a kv_budget, a "
                "kv_compression_ratio, or both."
            )
        least = self.kv_sinks + self.kv_recent
        if self.kv_budget is not None and self.kv_budget < least:
            raise ConfigError(
                f"kv_budget is {self.kv_budget} and {self.kv_sinks} sinks with {self.kv_recent} recent "
                f"tokens always stay; give a budget of at least {least}, or fewer of those."
            )

    @property
    def is_on(self) -> bool:
        """True if anything is ever evicted."""
        return self.kv_method is not None

    def kept(self, held: int, after_prompt: bool) -> int:
        """Number of tokens that an eviction keeps of the `held` ones of a row."""
        stays = held
        if after_prompt:
            most = math.ceil(held * (1.0 - self.kv_compression_ratio))
            stays = max(most, min(held, self.kv_sinks + self.kv_recent))
        return stays if self.kv_budget is None else min(stays, self.kv_budget)

    def make(self) -> Method:
        """Make the method that is named."""
        method: Method = METHODS.find(str(self.kv_method))(self.kv_recent)
        return method


NO_COMPRESSION = Compression()
