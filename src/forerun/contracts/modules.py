"""Contracts of the model parts that heads and adapters are composed of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from forerun.contracts.models import Ability, CausalLM, ChainRequest
from forerun.core import Batch, Draft

if TYPE_CHECKING:
    from torch import Tensor


class Module(Protocol):
    """A part of a model, on hidden states [..., size]."""

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """Output of the part for each token."""


@dataclass(frozen=True)
class AttentionShape:
    """Shape of a self-attention.

    Its weights are named: `qkv` [rows, cols] for all query heads, then keys, then values, `output`
    [hidden_size, num_heads * head_dim] and optionally `qkv_bias`, `output_bias`, `q_norm` and
    `k_norm` [head_dim].

    Args:
        num_heads: number of query heads.
        num_kv_heads: number of key and value heads, each shared by equally many query heads.
        head_dim: size of a head.
        window: a token at position i sees only positions above i - window; None: no limit.
        norm_eps: eps of the norms of queries and keys.
        inverse_frequencies: of the rotary embedding, head_dim / 2; empty: no rotary embedding.
        rotary_scale: factor on its cosines and sines.
        scale: factor on the scores; 0 for 1 / sqrt(head_dim).
        score_cap: bound c of the scores, by c tanh(x / c); 0 for none.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    norm_eps: float = 1e-6
    inverse_frequencies: tuple[float, ...] = ()
    rotary_scale: float = 1.0
    scale: float = 0.0
    score_cap: float = 0.0


@dataclass(frozen=True)
class LayerShape(AttentionShape):
    """Shape of a decoder layer: attention, then a gated MLP, each added to its input.

    The layer reads several inputs side by side, each normed, and adds to the last of them. Its
    weights are those of its attention, `mlp_norm` [hidden_size], `gate_up` [2 n, hidden_size],
    `down` [hidden_size, n] and optionally `gate_up_bias`, `down_bias` and the norms of the inputs,
    `input_norm.0` and so on. All norms have the eps `norm_eps`.

    Args:
        activation: activation of the MLP, see `Modules.activation`.
        inputs: number of inputs.
        normed_residual: the residual starts from the normed last input.
    """

    activation: str = "silu"
    inputs: int = 1
    normed_residual: bool = False


class KeepsText(Protocol):
    """A part with a cache of one layer, separate from the target's cache."""

    def new_cache(self, rows: int, capacity: int) -> Any:
        """An empty cache of `rows` rows of `capacity` tokens each."""


class Attention(KeepsText, Protocol):
    """Self-attention of one layer."""

    def __call__(self, hidden: Tensor, batch: Batch, cache: Any) -> Tensor:
        """Run the tokens of a batch and append their keys and values.

        `hidden` is [B, n, cols], the result [B, n, hidden_size]. Only rows, positions and trees of
        the batch are used.

        Raises:
            CacheError: for a batch that contradicts the cache, or a full row.
        """


class Layer(KeepsText, Protocol):
    """A decoder layer, see `LayerShape`. Only rows, positions and trees of a batch are used."""

    def __call__(self, inputs: Sequence[Tensor], batch: Batch, cache: Any) -> Tensor:
        """Run the tokens of a batch and append their keys and values.

        Each of `inputs` is [B, n, size], the result [B, n, hidden_size].

        Raises:
            CacheError: for a batch that contradicts the cache, or a full row.
        """


@dataclass(frozen=True)
class HeadParts:
    """Parts of a head that drafts chains as EAGLE-3 does (arXiv 2503.01840).

    Its layers read the embedding of a token beside a state for the token before it: a state of the
    target, or the layers' own output for that token. All parts come from one `Modules`.

    Args:
        state_norms: norms of equal parts of the target's joined states, in order; empty: none.
        fuse: maps those states to [..., hidden_size].
        layers: the layers; the first reads an embedding and a fused state or the last output.
        norm: norm of that output; None if the output head norms it.
        output: maps the output to logits [..., Vd].
        token_ids: the target's token of each logit, ascending; empty if token and index are the
            same.
        embedding: the head's own, [V, hidden_size]; None for the target's.
        vocab_size: the target's, V.
    """

    state_norms: Sequence[Module]
    fuse: Module
    layers: Sequence[Layer]
    norm: Module | None
    output: Module
    token_ids: Sequence[int]
    embedding: Tensor | None
    vocab_size: int


class HeadChains(Protocol):
    """A head that drafts whole chains in one call."""

    def draft(
        self, caches: Sequence[Any], requests: Sequence[ChainRequest], states: Sequence[Tensor]
    ) -> list[Draft]:
        """Draft chains side by side.

        Each slot of a row belongs to a state and the token after it. The slots of
        `requests[i].pending` and of all drafted tokens but the last are appended to the row. After
        an error the layers' caches may differ in length.

        Args:
            caches: one cache per layer.
            requests: chains in different rows; any token that the head can draft is allowed.
            states: for each request the target's joined states before its pending tokens, [pending,
                W].

        Raises:
            CacheError: if a row is full.
            DistributionError: for logits that are not numbers.
        """


class Modules(Protocol):
    """Builds parts of heads and adapters from their weights.

    Every method raises CheckpointError for weights that do not fit each other or cannot run.
    """

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> Module:
        """A linear map from [..., cols] to [..., rows], with `weight` [rows, cols] and `bias` [rows].

        With `norm` [cols], the weights of a norm, the input is normed first.
        """

    def norm(self, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6) -> Module:
        """A root mean square norm; with a bias, a layer norm."""

    def activation(self, name: str, gated: bool = False) -> Module:
        """The activation of an MLP by its name in a config of transformers.

        Gated, it maps [..., 2n] to [..., n]: the function of the first half, times the second half.
        """

    def attention(self, shape: AttentionShape, weights: Mapping[str, Tensor]) -> Attention:
        """A self-attention; its weights are named in `AttentionShape`."""

    def layer(self, shape: LayerShape, weights: Mapping[str, Tensor]) -> Layer:
        """A decoder layer; its weights are named in `LayerShape`."""

    def head_chains(self, parts: HeadParts) -> HeadChains | None:
        """Drafting of whole chains with a head in one call; None if the head must be run step by step."""


class BuildsModules(CausalLM, Protocol):
    """A model with `Ability.MODULES`."""

    def modules(self) -> Modules:
        """Builder of modules in the precision of this model.

        If that is int4 or the precision of a source of quantized weights, layers are in int4 and
        all else in int8.
        """


def builds_modules(model: CausalLM) -> TypeGuard[BuildsModules]:
    """True if a model builds modules itself; for others torch builds them."""
    return Ability.MODULES in model.abilities
