"""Contracts of models and their caches."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard

from forerun.core import Batch, Draft, Drawing, Exactness, ForwardOutput, Request, View

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Cache(Protocol):
    """Keys and values of a batch of rows, each with its own tokens.

    Its methods count tokens, in the order in which they were run; the place of a token's keys and
    values (its slot) is internal. A forward pass appends tokens to rows; `keep` and `trim` remove
    rejected ones.
    """

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def capacity(self) -> int:
        """Number of tokens that a row has room for."""

    def length(self, row: int, layer: int | None = None) -> int:
        """Number of tokens of `row` in `layer`; in its shortest layer if None.

        Raises:
            CacheError: for a row that does not exist.
        """

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` tokens of `row` and, of those after them, the ones at `path`, in order.

        A layer that does not hold all of them yet keeps those that it holds.

        Raises:
            CacheError: for a row that does not exist, and unless `path` ascends and the row's
                longest layer holds it.
        """

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the tokens of `row` after the first `length`; in `layers` only, unless None.

        Raises:
            CacheError: for a row or layers that do not exist, for a negative length, and for layers
                if all layers have one length.
        """


class Eviction(Protocol):
    """Eviction of tokens from a cache's rows.

    `commit` and `evict` are called only when none of a row's tokens will be taken back.
    """

    def commit(self, row: int) -> None:
        """Note the tokens that a row holds now; more of the prompt may follow."""

    def evict(self, row: int) -> None:
        """Evict the tokens that are due.

        Called before a request's newest token is run, first after its prompt.
        """

    def until_eviction(self, row: int) -> int | None:
        """Number of tokens that may be appended before the next eviction; None if there will be none.

        Tokens that are run beyond this number must not be kept.
        """


class Evicts(Cache, Eviction, Protocol):
    """A cache that evicts some of its tokens, so that later results are approximate.

    Its methods still count evicted tokens as held.
    """

    dropped: list[int]
    """Number of tokens that each row has lost, the same in all layers."""

    def copy(self) -> Self:
        """A second cache with the same content, which can be continued separately."""


class ReadThroughViews(Cache, Protocol):
    """A cache of a model with `Ability.VIEWS`."""

    def check_view(self, view: View | None) -> None:
        """Refuse a view that this cache cannot be read through.

        Raises:
            CacheError: naming the reason.
        """


class SavesRows(Cache, Protocol):
    """A cache whose rows can be copied out and later, or elsewhere, copied back in.

    The part of a row in one layer is one or more tensors, by name.
    """

    @property
    def row_format(self) -> Mapping[str, str | int]:
        """Description of a row's content: a row can only be copied into caches with an equal description."""

    def row_shapes(self, length: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and shape of the tensors of one layer, for a row of `length` tokens."""

    def read_row(self, row: int, layer: int, length: int) -> dict[str, Tensor]:
        """Copy the first `length` tokens of a row in one layer to the CPU."""

    def write_row(self, row: int, layer: int, length: int, tensors: Mapping[str, Tensor]) -> None:
        """Make a row hold, in one layer, the `length` tokens that `read_row` returned."""


class Ability(enum.StrEnum):
    """An ability of some models beyond the contract; ask for it in `CausalLM.abilities`."""

    DRAFT_CHAINS = "draft_chains"
    """Draft whole chains in one call: see `DraftsChains`."""
    MODULES = "modules"
    """Build parts of heads and adapters on the model's own backend: see `BuildsModules`."""
    VIEWS = "views"
    """Read only a part of the text: see `Batch.view`."""
    EVICTION = "eviction"
    """Run on a cache that evicts: see `CompressesCache`."""
    SESSIONS = "sessions"
    """Make caches whose rows can be saved: see `SavesRows`."""


class CausalLM(Protocol):
    """A language model with a cache that can be rolled back."""

    name: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    max_context: int
    device: torch.device
    dtype: torch.dtype
    """Type of logits and hidden states."""
    precision: str
    """Precision of the weights: `fp32`, `bf16`, `int8` and so on."""
    exactness: Exactness
    abilities: frozenset[Ability]

    def new_cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache of `rows` rows of `capacity` tokens each."""

    def forward(self, batch: Batch, cache: Any) -> ForwardOutput:
        """Run new tokens and append their keys and values to the cache.

        Args:
            batch: the tokens, and the outputs wanted.
            cache: a cache of this model.

        Raises:
            CacheError: for a batch that contradicts the cache, a full row, or a position beyond the
                context.
            ConfigError: for layers that the model does not have or that are not run.
            UnsupportedModelError: if the batch asks for single layers, hidden states or a view and
                the model does not support them.
        """

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [B, n, hidden_size] of token ids [B, n], without those of positions.

        Raises:
            ConfigError: if the model has no embedding that runs alone.
        """

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the norm before the output head to hidden states [B, n, hidden_size] after any layer.

        Raises:
            ConfigError: if the model has no output head that runs alone.
        """

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of normed hidden states [B, n, hidden_size].

        From the states after the last layer they are the logits of `forward`.

        Raises:
            ConfigError: if the model has no output head that runs alone.
        """


class CompressesCache(CausalLM, Protocol):
    """A model with `Ability.EVICTION`."""

    def compressed_cache(self, rows: int, capacity: int, compression: Any) -> Evicts:
        """An empty cache of `rows` rows of `capacity` tokens each, some of which will be evicted.

        Args:
            compression: a `forerun.compression.Compression` that names a method.

        Raises:
            UnsupportedModelError: for layers that forget by themselves, such as those with sliding
                windows.
        """


def compresses_cache(model: CausalLM) -> TypeGuard[CompressesCache]:
    """True if a model runs on a cache that evicts."""
    return Ability.EVICTION in model.abilities


class ReadsViews(CausalLM, Protocol):
    """A model with `Ability.VIEWS`; its caches are `ReadThroughViews`."""

    def bytes_read(self, context: int, layers: int, view: View | None = None) -> float:
        """Approximate bytes of weights, keys and values that one token reads in `layers` layers.

        The token follows a context of `context` tokens and reads it through `view`, or in full if
        None.
        """


def reads_views(model: CausalLM) -> TypeGuard[ReadsViews]:
    """True if a model can read only a part of the text."""
    return Ability.VIEWS in model.abilities


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """One chain to draft.

    Args:
        row: row of the cache.
        pending: tokens of the text that the row lacks, the newest at least.
        limit: most tokens to draft, at least 1.
        drawing: the way to pick them.
        text: the request that is drafted for; its parameters must not adjust logits.
        draft_vocab_size: draft only the first `draft_vocab_size` tokens of the vocabulary, those of
            the text and `likely`; None: any.
        likely: further tokens to draft; from chain to chain of a text the list only grows.
        least: end the chain when the probability that all its tokens are accepted falls below this.
            It is estimated from the probability of the most likely token before any warping, which
            is known before a token is drawn.
    """

    row: int
    pending: Sequence[int]
    limit: int
    drawing: Drawing
    text: Request
    draft_vocab_size: int | None = None
    likely: Sequence[int] = ()
    least: float = 0.0


class DraftsChains(CausalLM, Protocol):
    """A model with `Ability.DRAFT_CHAINS`."""

    def draft_chains(
        self,
        cache: Any,
        requests: Sequence[ChainRequest],
        vocab_size: int,
        view: View | None = None,
    ) -> list[Draft]:
        """Draft chains side by side, all steps in one call.

        The tokens of `requests[i].pending` and all drafted ones but the last are appended to its
        row of the cache.

        Args:
            cache: a cache of this model.
            requests: the chains, in different rows.
            vocab_size: the target's; tokens that this model lacks have no probability.
            view: the part of its text that each token reads, for a model with `Ability.VIEWS`;
                None: all of it.

        Raises:
            CacheError: if a row is full or a position lies beyond the context.
            DistributionError: for logits that are not numbers.
        """

    def bytes_spared(self, context: int, draft_vocab_size: int) -> float:
        """Approximate bytes of the output head that a chain with `draft_vocab_size` does not read.

        The chain follows a context of `context` tokens; see `ChainRequest.draft_vocab_size`.
        """


def drafts_chains(model: CausalLM) -> TypeGuard[DraftsChains]:
    """True if a model drafts whole chains in one call."""
    return Ability.DRAFT_CHAINS in model.abilities
