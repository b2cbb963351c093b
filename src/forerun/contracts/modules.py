"""What parts of models do that heads and adapters are composed of."""

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


@dataclass(frozen=True)
class LayerShape(AttentionShape):
    """The shape of a decoder layer: attention, then a gated MLP, each added to what came in.

    It reads several inputs side by side, each normed, and adds to the last of them. Beside the weights
    of its attention are `mlp_norm` [hidden_size], `gate_up` [2 n, hidden_size], `down` [hidden_size, n]
    and, where it has them, `gate_up_bias`, `down_bias` and the norms of the inputs, `input_norm.0` and
    so on. All norms have the eps `norm_eps`.

    Args:
        activation: of the MLP, see `Modules.activation`.
        inputs: how many.
        normed_residual: whether the last input is normed before it is added to as well.
    """

    activation: str = "silu"
    inputs: int = 1
    normed_residual: bool = False


class KeepsText(Protocol):
    """A part with caches of one layer, apart from the target's."""

    def new_cache(self, rows: int, capacity: int) -> Any:
        """An empty cache of `rows` rows of `capacity` tokens each."""


class Attention(KeepsText, Protocol):
    """A self-attention."""

    def __call__(self, hidden: Tensor, batch: Batch, cache: Any) -> Tensor:
        """Run the tokens of a batch, hidden states [B, n, cols], and append their keys and values;
        hidden states [B, n, hidden_size]. Of the batch only rows, positions and trees count.

        Raises:
            CacheError: for a batch that contradicts the cache, or a full row.
        """


class Layer(KeepsText, Protocol):
    """A decoder layer, see `LayerShape`. Of a batch only rows, positions and trees count.

    Both raise CacheError for a batch that contradicts the cache, or a full row.
    """

    def __call__(self, inputs: Sequence[Tensor], batch: Batch, cache: Any) -> Tensor:
        """Run the tokens of a batch, inputs [B, n, size] each, and append their keys and values; hidden
        states [B, n, hidden_size]."""

    def append(self, hidden: Tensor, batch: Batch, cache: Any) -> None:
        """Append the keys and values of what the attention reads, [B, n, cols], and nothing else."""


class Linear(Module, Protocol):
    """A product with a matrix."""

    def add(self, hidden: Tensor, out: Tensor) -> None:
        """Add what it makes of `hidden` [..., cols] to `out` [..., rows], in place."""


@dataclass(frozen=True)
class HeadParts:
    """What a head is made of that drafts chains as EAGLE-3 does (arXiv 2503.01840): its layers read a state
    of the target, or what they made of the token before, beside the embedding of the token after it.

    All parts come from one `Modules`.

    Args:
        state_norms: of equal parts of the target's joined states, in order; empty: none.
        fuse: of those states, to [..., hidden_size].
        layers: of which the first reads an embedding and what is fused or carried.
        norm: of what is carried; None where the output head norms it.
        output: logits [..., Vd] of what is carried.
        token_ids: the target's token of each logit, ascending; empty where that is its index.
        embedding: the head's own, [V, hidden_size]; None for the target's.
        vocab_size: the target's, V.
    """

    state_norms: Sequence[Any]
    fuse: Any
    layers: Sequence[Any]
    norm: Any
    output: Any
    token_ids: Sequence[int]
    embedding: Tensor | None
    vocab_size: int


class HeadChains(Protocol):
    """A head that drafts whole chains in one call."""

    def draft(
        self, caches: Sequence[Any], requests: Sequence[ChainRequest], states: Sequence[Tensor]
    ) -> list[Draft]:
        """Draft chains side by side.

        A slot of a row belongs to a state and the token after it. The slots of `requests[i].pending` and
        of all drafted tokens but the last are appended to the row. After an error the layers' caches may
        differ in length.

        Args:
            caches: one a layer.
            requests: of different rows; all that can be drafted may be.
            states: of the target, joined, the one before each pending token, [pending, W].

        Raises:
            CacheError: when a row is full.
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
    ) -> Linear:
        """From [..., cols] to [..., rows] by `weight` [rows, cols] and `bias` [rows], of what the norm
        of weights `norm` [cols] makes of it, if there is one."""

    def norm(self, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6) -> Module:
        """A norm by the root mean square; with a bias a layer norm."""

    def activation(self, name: str, gated: bool = False) -> Module:
        """The function between the products of an MLP, called as in a config of transformers. Gated,
        it goes from [..., 2n] to [..., n]: the function of the first half, times the second."""

    def attention(self, shape: AttentionShape, weights: Mapping[str, Tensor]) -> Attention:
        """A self-attention; its weights are named in `AttentionShape`."""

    def layer(self, shape: LayerShape, weights: Mapping[str, Tensor]) -> Layer:
        """A decoder layer; its weights are named in `LayerShape`."""

    def head_chains(self, parts: HeadParts) -> HeadChains | None:
        """What drafts whole chains with a head in one call; None where it is run step by step."""


class BuildsModules(CausalLM, Protocol):
    """A model with `Ability.MODULES`."""

    def modules(self) -> Modules:
        """What builds modules in the precision of this model; where that is int4 or that of a source of
        quantized weights, layers in int4 and all else in int8."""


def builds_modules(model: CausalLM) -> TypeGuard[BuildsModules]:
    """Whether a model builds modules itself; others leave that to torch."""
    return Ability.MODULES in model.abilities
