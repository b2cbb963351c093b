"""Architecture of a decoder, read from the config of any family that forerun's own decoder runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from forerun.costs.shapes import ModelShape
from forerun.errors import CheckpointError, ConfigError
from forerun.models.families import CLAMPED_SWIGLU, FAMILIES, Family

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_fast": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}


@dataclass(frozen=True, kw_only=True)
class Architecture(ModelShape):
    """Architecture of a decoder: all that torch and the kernels need to know of a family.

    A layer is `x += residual_scale * norm(attention(norm(x)))`, then the same with the MLP.

    Attributes:
        family: one of `FAMILIES`.
        windows: number of tokens that each layer sees, the token itself and those before it; None
            for all.
        ropes: the rotary embedding of each layer: the key of its parameters in the config's
            `rope_parameters`, empty if these are the only ones; None for no rotation.
        rope_pairs: True if the values that rotate together lie side by side, not in two halves.
        learned_positions: True if embeddings of positions are added to those of tokens.
        norm_before, norm_after: norms of what attention and MLP read, and of what they add.
        layer_norm: True if norms subtract the mean; `norm_bias` if they have a bias.
        norm_offset: number that is added to the published weights of the norms of layers.
        parallel: True if the MLP reads what the attention reads.
        norm_topk_prob: True if the weights of a token's experts sum to one; otherwise they are those
            of a softmax over all experts.
        query_key_norm: norm of queries and keys, each head by itself (`head`) or all together
            (`whole`); empty for none.
        attention_bias: True if the query, key and value projections have a bias.
        output_bias: True if the attention's output projection has a bias.
        mlp_bias: True if the MLP has biases; experts then have them, and their router.
        sinks: True if each head has a score of its own for a value of zeros that all tokens see.
        attention_scale: factor on attention scores; 0 for 1 / sqrt(head_dim).
        score_cap, logit_cap: bound c of attention scores and logits, by c tanh(x / c); 0 for none.
        embedding_scale, residual_scale, logit_scale: factors on embeddings, on what attention and MLP
            add, and on logits.
        frequency_factors: divisors of the rotary embedding's frequencies, one for each.
        config: the config of transformers that it was read from.
    """

    family: str
    max_context: int
    norm_eps: float
    activation: str
    windows: tuple[int | None, ...]
    ropes: tuple[str | None, ...]
    rope_pairs: bool = False
    learned_positions: bool = False
    norm_before: bool = True
    norm_after: bool = False
    layer_norm: bool = False
    norm_bias: bool = False
    norm_offset: float = 0.0
    parallel: bool = False
    norm_topk_prob: bool = False
    query_key_norm: str = ""
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    sinks: bool = False
    attention_scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    frequency_factors: tuple[float, ...] = ()
    config: Any = field(default=None, repr=False, compare=False)

    def share_read(self, name: str) -> float:
        """Share of a weight that one token reads, by its name in `layouts`."""
        routed = self.num_experts and name.endswith(("up.weight", "down.weight"))
        return self.experts_per_token / self.num_experts if routed else 1.0


LAYER_KINDS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers by transformers' names whose tokens see a part of the text before them."""


def is_causal(config: Any) -> bool:
    """False if a config of transformers lets tokens see later ones."""
    return getattr(config, "is_causal", True) is not False


def native(config: Any) -> bool:
    """True if a config of transformers describes a model that runs on forerun's own decoder."""
    family = FAMILIES.get(config.model_type)
    kinds = set(getattr(config, "layer_types", None) or ())
    odd = config.is_heterogeneous or kinds - LAYER_KINDS or not is_causal(config)
    if family is None or odd:
        return False
    if any(getattr(config, key, None) not in values for key, values in family.only.items()):
        return False
    fields = {"activation": getattr(config, "hidden_act", None), **family.read(config)}
    ropes = {kind for kind in fields.get("ropes", ("",)) if kind is not None}
    known = all(_runs_rope(family, rope_parameters(config, kind)) for kind in ropes)
    return known and fields["activation"] in (*ACTIVATIONS, CLAMPED_SWIGLU)


def _runs_rope(family: Family, parameters: Mapping[str, Any]) -> bool:
    whole = family.partial or parameters.get("partial_rotary_factor", 1) == 1
    return whole and parameters.get("rope_type") in family.rope_types


def rope_parameters(config: Any, kind: str) -> Mapping[str, Any]:
    """Parameters of the rotary embedding of a kind of layer, see `Architecture.ropes`."""
    parameters = config.rope_parameters or {}
    found: Mapping[str, Any] = (parameters.get(kind) or {}) if kind else parameters
    return found


def read_architecture(config: Any) -> Architecture:
    """Read the architecture from a config of transformers; `native(config)` must hold.

    Raises:
        CheckpointError: for numbers that contradict each other.
    """
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    values = {**_usual(config), **FAMILIES[config.model_type].read(config)}
    if heads % values["num_kv_heads"]:
        raise CheckpointError(
            f"num_attention_heads is {heads}; it must be a multiple of "
            f"num_key_value_heads, {values['num_kv_heads']}."
        )
    if config.model_type == "gpt2" and config.hidden_size % heads:
        raise CheckpointError(
            f"n_embd is {config.hidden_size}; it must be a multiple of n_head, {heads}."
        )
    if not values.get("learned_positions") and values["head_dim"] % 2:
        raise CheckpointError(
            f"head_dim is {values['head_dim']}; it must be even, so that pairs of numbers are rotated."
        )
    for kind in {kind for kind in values["ropes"] if kind is not None}:
        share = rope_parameters(config, kind).get("partial_rotary_factor") or 1
        rotated = int(values["head_dim"] * share)
        if rotated % 2 or not 0 < rotated <= values["head_dim"]:
            raise CheckpointError(
                f"partial_rotary_factor is {share}; of {values['head_dim']} numbers of a head it must "
                "leave pairs, which are rotated."
            )
    if not len(values["windows"]) == len(values["ropes"]) == layers:
        raise CheckpointError(
            f"layer_types or no_rope_layers do not list {layers} layers; num_hidden_layers says so."
        )
    try:
        return Architecture(
            family=config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=layers,
            num_heads=heads,
            tied=bool(config.tie_word_embeddings),
            gated="up" not in FAMILIES[config.model_type].published,
            config=config,
            **values,
        )
    except ConfigError as error:
        raise CheckpointError(str(error)) from None


def for_context(shape: Architecture, context: int) -> Architecture:
    """The architecture for texts of up to `context` tokens.

    Phi-3's rotary embedding has other frequencies for longer texts than it was first trained on, which
    then apply to all of their tokens.
    """
    if context <= shape.max_context:
        return shape
    return replace(shape, max_context=shape.config.max_position_embeddings)


def _usual(config: Any) -> dict[str, Any]:
    """Fields under the names that most families share."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    return {
        "intermediate_size": getattr(config, "intermediate_size", None),
        "num_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "norm_eps": getattr(config, "rms_norm_eps", None),
        "activation": getattr(config, "hidden_act", None),
        "max_context": config.max_position_embeddings,
        "windows": (None,) * layers,
        "ropes": ("",) * layers,
    }
