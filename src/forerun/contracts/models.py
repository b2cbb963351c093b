"""What a model and its cache must be able to do."""

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


class Evicts(Cache, Protocol):
    """A cache that gives up some of what it holds, so that what follows is approximate.

    It still speaks in tokens: evicted ones count as held. Both `commit` and `evict` are called where
    nothing that a row holds will be taken back.
    """

    dropped: list[int]
    """Tokens that each row has lost, the same in all layers."""

    def commit(self, row: int) -> None:
        """Take note of what a row holds, which may go on to be more of a prompt."""

    def evict(self, row: int) -> None:
        """Give up what is due, before the newest token of a request is run: first after its prompt."""

    def copy(self) -> Self:
        """Another cache that holds the same, to go on otherwise."""

    def until_eviction(self, row: int) -> int | None:
        """Tokens that may be appended before the next are given up; None where none will be. What is run
        beyond them must not be kept."""


class SavesRows(Cache, Protocol):
    """A cache whose rows can be copied out and, later or elsewhere, in again. A layer's part of a row is
    one or more tensors, by name."""

    @property
    def row_format(self) -> Mapping[str, str | int]:
        """What a row is made of: it can be copied into caches with the same alone."""

    def row_shapes(self, length: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and shape of the tensors of one layer, for a row of `length` tokens."""

    def read_row(self, row: int, layer: int, length: int) -> dict[str, Tensor]:
        """The first `length` tokens of a row in one layer, on the CPU."""

    def write_row(self, row: int, layer: int, length: int, tensors: Mapping[str, Tensor]) -> None:
        """Have a row hold, in one layer, `length` tokens that `read_row` has read."""


class Ability(enum.StrEnum):
    """What some models can do beyond the contract; ask for it in `CausalLM.abilities`."""

    DRAFT_CHAINS = "draft_chains"
    """Drafting whole chains in one call: see `DraftsChains`."""
    MODULES = "modules"
    """Building parts of heads and adapters on what the model runs on: see `BuildsModules`."""
    VIEWS = "views"
    """Reading a part of the text alone: see `Batch.view`."""
    EVICTION = "eviction"
    """Running on a cache that evicts: see `CompressesCache`."""
    SESSIONS = "sessions"
    """Making caches whose rows can be saved: see `SavesRows`."""


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
                to return, and for a view where it reads all that its rows hold.
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


class CompressesCache(CausalLM, Protocol):
    """A model with `Ability.EVICTION`."""

    def compressed_cache(self, rows: int, capacity: int, compression: Any) -> Evicts:
        """An empty cache of `rows` rows of `capacity` tokens each, of which some are evicted.

        Args:
            compression: a `forerun.compression.Compression` that names a method.

        Raises:
            UnsupportedModelError: for layers that forget by themselves, as those of sliding windows.
        """


def compresses_cache(model: CausalLM) -> TypeGuard[CompressesCache]:
    """Whether a model runs on a cache that evicts."""
    return Ability.EVICTION in model.abilities


class ReadsViews(CausalLM, Protocol):
    """A model with `Ability.VIEWS`."""

    def bytes_read(self, context: int, layers: int, view: View | None = None) -> float:
        """Of weights and of keys and values, about, by one token behind `context` of them, in so many layers,
        with a view or in full."""


def reads_views(model: CausalLM) -> TypeGuard[ReadsViews]:
    """Whether a model reads a part of the text alone where it is asked to."""
    return Ability.VIEWS in model.abilities


@dataclass(frozen=True)
class ChainRequest:
    """One chain to draft.

    Args:
        row: of the cache.
        pending: tokens of the text that the row lacks, the newest at least.
        limit: tokens to draft at most, at least 1.
        drawing: how to pick them.
        text: whose text it is; its parameters must not adjust logits.
        draft_vocab_size: draft no tokens but the first so many, those of the text and `likely`; None: any.
        likely: from chain to chain of a text the list only grows.
        least: end the chain where its tokens are all accepted with less than this probability, by the shares
            of the most probable tokens before any warping, which are known before a token is drawn.
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
            cache: of this model.
            requests: of different rows.
            vocab_size: the target's; tokens that this model lacks have no probability.
            view: what each token reads of its text, for a model with `Ability.VIEWS`; None: all of it.

        Raises:
            CacheError: when a row is full or a position lies beyond the context.
            DistributionError: for logits that are not numbers.
        """

    def bytes_spared(self, context: int, draft_vocab_size: int) -> float:
        """Of the output head, about, by a chain behind `context` tokens that drafts no others than
        `ChainRequest.draft_vocab_size` says."""


def drafts_chains(model: CausalLM) -> TypeGuard[DraftsChains]:
    """Whether a model drafts whole chains in one call."""
    return Ability.DRAFT_CHAINS in model.abilities
