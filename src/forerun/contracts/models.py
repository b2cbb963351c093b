"""What a model and its cache must be able to do."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from forerun.core import Batch, Draft, Drawing, Exactness, ForwardOutput, Request

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Cache(Protocol):
    """Keys and values of a batch of rows, each with its own tokens.

    It speaks in tokens, in the order in which they were run; where the keys and values of a token
    lie (its slot) is its own affair. A forward pass appends tokens to rows; `keep` and `trim` take
    back what was rejected.
    """

    @property
    def rows(self) -> int:
        """Rows of the batch."""

    @property
    def capacity(self) -> int:
        """Tokens a row."""

    def length(self, row: int, layer: int | None = None) -> int:
        """Tokens of `row` in `layer`; in its shortest layer if None.

        Raises:
            CacheError: for a row that does not exist.
        """

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Of the tokens of `row` after the first `length`, keep those at `path`, in their order.

        A layer that does not hold all of them yet keeps those that it holds.

        Raises:
            CacheError: for a row that does not exist, and unless `path` ascends and the row's
                longest layer holds it.
        """

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the tokens of `row` after the first `length`, in `layers` alone unless None.

        Raises:
            CacheError: for a row or layers that do not exist, a negative length, and for layers
                where all have one length.
        """


class Ability(enum.StrEnum):
    """What some models can do beyond the contract; ask for it in `CausalLM.abilities`."""

    DRAFT_CHAINS = "draft_chains"
    """Drafting whole chains in one call: see `DraftsChains`."""
    MODULES = "modules"
    """Building parts of heads and adapters on what the model runs on: see `BuildsModules`."""


class CausalLM(Protocol):
    """A language model with a cache that can be rolled back."""

    name: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    max_context: int
    device: torch.device
    dtype: torch.dtype
    """Of logits and hidden states."""
    precision: str
    """Of the weights: `fp32`, `bf16`, `int8` and so on."""
    exactness: Exactness
    abilities: frozenset[Ability]

    def new_cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache of `rows` rows of `capacity` tokens each."""

    def forward(self, batch: Batch, cache: Any) -> ForwardOutput:
        """Run new tokens and append their keys and values to the cache.

        Args:
            batch: the tokens and what to return of them.
            cache: of this model.

        Raises:
            CacheError: for a batch that contradicts the cache, a full row, or a position beyond the
                context.
            ConfigError: for layers that the model does not have or that are not run.
            UnsupportedModelError: for layers or hidden states where the model has none to run or
                to return.
        """

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embeddings [B, n, hidden_size] of token ids [B, n], without those of positions.

        Raises:
            ConfigError: where the model has no embedding that runs alone.
        """

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The norm before the output head, of hidden states [B, n, hidden_size] after any layer.

        Raises:
            ConfigError: where the model has no output head that runs alone.
        """

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of normed hidden states [B, n, hidden_size]; of those after the last
        layer they are the logits of `forward`.

        Raises:
            ConfigError: where the model has no output head that runs alone.
        """


@dataclass(frozen=True)
class ChainRequest:
    """One chain to draft.

    Args:
        row: of the cache.
        pending: tokens of the text that the row lacks, the newest at least.
        limit: tokens to draft at most, at least 1.
        drawing: how to pick them.
        text: whose text it is; its parameters must not adjust logits.
    """

    row: int
    pending: Sequence[int]
    limit: int
    drawing: Drawing
    text: Request


class DraftsChains(CausalLM, Protocol):
    """A model with `Ability.DRAFT_CHAINS`."""

    def draft_chains(
        self, cache: Any, requests: Sequence[ChainRequest], vocab_size: int
    ) -> list[Draft]:
        """Draft chains side by side, all steps in one call.

        The tokens of `requests[i].pending` and all drafted ones but the last are appended to its
        row of the cache.

        Args:
            cache: of this model.
            requests: of different rows.
            vocab_size: the target's; tokens that this model lacks have no probability.

        Raises:
            CacheError: when a row is full or a position lies beyond the context.
            DistributionError: for logits that are not numbers.
        """


def drafts_chains(model: CausalLM) -> TypeGuard[DraftsChains]:
    """Whether a model drafts whole chains in one call."""
    return Ability.DRAFT_CHAINS in model.abilities
