"""What a model, its cache, a drafter, a rule and a policy must be able to do."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

from forerun.core import Batch, Draft, Drawing, Exactness, ForwardOutput, Plan, Request, Verdict
from forerun.options import pick

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from forerun.randomness import Randomness
    from forerun.verification.rows import TargetRows

T = TypeVar("T")


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


class Module(Protocol):
    """A part of a model, on hidden states [..., size]."""

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """The output of the part for each token."""


@dataclass(frozen=True)
class AttentionShape:
    """The shape of a self-attention; its weights go by name: `qkv` [rows, cols] for all query heads,
    then keys, then values, `output` [hidden_size, num_heads * head_dim] and, where it has them,
    `qkv_bias`, `output_bias`, `q_norm` and `k_norm` [head_dim].

    Args:
        num_heads: query heads.
        num_kv_heads: of keys and values, each shared by as many query heads.
        head_dim: size of a head.
        window: a token at position i sees positions above i - window only; None: no limit.
        norm_eps: of the norms of queries and keys.
        inverse_frequencies: of the rotary embedding, head_dim / 2; empty: no such embedding.
        rotary_scale: on its cosines and sines.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    norm_eps: float = 1e-6
    inverse_frequencies: tuple[float, ...] = ()
    rotary_scale: float = 1.0


class Attention(Protocol):
    """A self-attention with caches of one layer, apart from the target's."""

    def new_cache(self, rows: int, capacity: int) -> Any:
        """An empty cache of `rows` rows of `capacity` tokens each."""

    def __call__(self, hidden: Tensor, batch: Batch, cache: Any) -> Tensor:
        """Run the tokens of a batch, hidden states [B, n, cols], and append their keys and values;
        hidden states [B, n, hidden_size]. Of the batch only rows, positions and trees count.

        Raises:
            CacheError: for a batch that contradicts the cache, or a full row.
        """


class Modules(Protocol):
    """Builds parts of heads and adapters from their weights.

    Every method raises CheckpointError for weights that do not fit each other or cannot run.
    """

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Module:
        """From [..., cols] to [..., rows] by `weight` [rows, cols] and `bias` [rows]."""

    def norm(self, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6) -> Module:
        """A norm by the root mean square; with a bias a layer norm."""

    def activation(self, name: str, gated: bool = False) -> Module:
        """The function between the products of an MLP, called as in a config of transformers. Gated,
        it goes from [..., 2n] to [..., n]: the function of the first half, times the second."""

    def attention(self, shape: AttentionShape, weights: Mapping[str, Tensor]) -> Attention:
        """A self-attention; its weights are named in `AttentionShape`."""


class BuildsModules(CausalLM, Protocol):
    """A model with `Ability.MODULES`."""

    def modules(self) -> Modules:
        """What builds modules in the precision of this model (int8 where it is int4)."""


def builds_modules(model: CausalLM) -> TypeGuard[BuildsModules]:
    """Whether a model builds modules itself; others leave that to torch."""
    return Ability.MODULES in model.abilities


@dataclass(frozen=True)
class DrafterSetup:
    """What a drafter may be built from.

    Args:
        target: the model that it drafts for.
        rows: requests that run at once.
        capacity: tokens of prompt and output a request, drafted ones included.
        options: those of the method, and of its members, by name; `read` takes them out.
        load_draft_model: loads the draft model that the user named.
        encode: makes token ids of text, without what opens a prompt; None without a tokenizer.
        tree_slots: slots a row for the nodes of trees; 0 where only chains are asked for.
        translation: a `drafters.model.retokenizer.Translation`, where the vocabularies differ.
    """

    target: CausalLM
    rows: int
    capacity: int
    options: Mapping[str, Any]
    load_draft_model: Callable[[], CausalLM]
    encode: Callable[[str], list[int]] | None = None
    tree_slots: int = 0
    translation: Any = None

    def read(self, kind: type[T]) -> T:
        """The options of a class that a drafter declares by `forerun.options.options`."""
        return pick(kind, self.options)


class Drafter(Protocol):
    """Proposes tokens. One file a method; the engine checks what it declares when it is built."""

    name: str
    needs_draft_model: bool
    exactness: Exactness
    drawings: frozenset[Drawing]
    """The ways of drawing that it supports; {GREEDY} for deterministic drafters."""
    draws_trees: bool
    """Whether it proposes trees that no plan has asked for."""
    takes_trees: bool
    """Whether it grows the trees that plans ask for."""
    reads_predictions: bool
    """Whether it drafts from the predictions that requests bring; see `forerun.core.Hints`."""
    shared_layers: int
    """How many of the target's first layers it runs itself; see `Draft.hidden`."""
    hidden_layers: tuple[int, ...]
    """Hidden layers of the target that `observe` and `observe_prefill` need."""
    vocab_size: int | None
    """The vocabulary that it proposes from; None for ids taken from the text itself."""
    rows: int | None
    """Requests that it can serve at once; None for any number."""
    options: type[Any]
    """Its own options, a class made by `forerun.options.options`; `NoOptions` if it has none."""

    @classmethod
    def member_methods(cls, options: Any) -> Sequence[str]:
        """The other methods that it drafts with, by its own options; it takes theirs too."""

    @classmethod
    def build(cls, setup: DrafterSetup) -> Drafter:
        """Make one for an engine."""

    def attach(self, cache: Cache) -> None:
        """Receive the target's cache, into which a drafter that runs layers of the target may write
        beyond the committed tokens; such a drafter refuses a second engine's with a ConfigError. The
        engine calls it once, when it is built."""

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One draft a request, of at most the planned number of tokens along any path."""

    def confidence(self, request: Request) -> float:
        """The share of its next draft that it expects to be accepted, in [0, 1], estimated from the
        committed tokens alone, before anything is drawn."""

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Learn from a round, drafted or plain; the requests hold the emitted tokens already.

        Row 0 of `output` belongs to the newest token before the round, row i + 1 to node i. A
        request that failed in the round has emitted nothing.
        """

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        """Learn from the hidden layers that it declared, of prompt tokens from `start` on:
        `output.hidden` [1, n, hidden_size]. Tokens that the cache still held from an earlier request
        in the same row are not run again; their states are those that were seen then."""

    def release(self, request: Request) -> None:
        """Forget a request that has ended; it may be called twice. What a cache of the drafter holds
        of its tokens may stay, for later texts in the same row that begin alike."""

    def clear_row(self, row: int) -> None:
        """Forget what caches of the drafter hold in a row, of which no request runs any more: called
        where the engine keeps none of its tokens for later requests."""


class Verifier(Protocol):
    """A rule that turns drafts and the target's rows into verdicts."""

    name: str
    exactness: Exactness

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        """Verify the drafts of a round, one a request.

        `rows` makes probabilities of the target's logits where they are asked for; row 0 of a request
        follows its committed tokens, row i + 1 follows node i. What goes wrong in the row after a node
        where a path ends is that request's own: `Verdict.up_to` emits what stands before it.
        """


class Policy(Protocol):
    """Decides from the past alone how far to speculate."""

    name: str

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """One plan a request for the coming round."""

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        seconds: float,
    ) -> None:
        """Learn from the round's outcome and the seconds that it took, drafting included."""

    def release(self, request: Request) -> None:
        """Forget a request that has ended."""
