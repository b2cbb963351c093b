"""Precision of a model's keys and values."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from forerun.costs.precision import CODED, group_of
from forerun.errors import ConfigError

if TYPE_CHECKING:
    from forerun.contracts import CausalLM


class HasKvDtype(Protocol):
    """A model on forerun's own decoder, which can store keys and values in several precisions.

    Attributes:
        kv_dtype: precision of the caches that it makes, one of
            `forerun.models.placement.KV_DTYPES`.
    """

    kv_dtype: str
    head_dim: int
    name: str


Model = TypeVar("Model", bound="CausalLM")


def with_kv_dtype(model: Model, kv_dtype: str) -> Model:
    """The model with the same weights, but caches of another precision.

    Args:
        kv_dtype: one of `forerun.models.placement.KV_DTYPES`.

    Raises:
        ConfigError: for heads that no group of int8 or int4 divides.
    """
    if kv_dtype == "auto":
        return model
    other = copy.copy(model)
    own = cast(HasKvDtype, other)
    if kv_dtype in CODED and group_of(own.head_dim) is None:
        raise ConfigError(
            f"kv_dtype {kv_dtype!r} needs heads of a multiple of 16 dimensions, and those of {own.name} have "
            f"{own.head_dim}; use 'bf16'."
        )
    own.kv_dtype = kv_dtype
    return other
