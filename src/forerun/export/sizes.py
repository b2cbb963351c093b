"""Sizes in a head's config, and the tensors that they imply."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.errors import CheckpointError, shown
from forerun.export.head import DSPARK, PublishedHead
from forerun.export.target import Target

Shapes = dict[str, tuple[int, ...]]

DEFAULT_THETA = 10000.0
MOST_LAYERS = 256
MOST_BLOCK = 64


@dataclass(frozen=True)
class Sizes:
    """Sizes of a head's decoder layers, embedding and output, from its config.

    Attributes:
        target_hidden_size: size of the fused features.
        vocab_size: number of tokens in the embedding.
        draft_vocab_size: number of tokens in the output.
        num_features: number of hidden layers of the target that are fused.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    vocab_size: int
    draft_vocab_size: int
    num_features: int
    norm_eps: float


def whole(
    config: Mapping[str, Any], key: str, default: int | None = None, *, most: int = 2**30
) -> int:
    """An integer from a config, between 1 and `most`.

    Raises:
        CheckpointError: for a missing key without a default, or another value.
    """
    value = config.get(key)
    if value is None:
        value = default
    if type(value) is not int or not 1 <= value <= most:
        raise CheckpointError(
            f"config.json has {key} {shown(value)}; it must be an integer from 1 to {most}."
        )
    return value


def ids(config: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    """A list of integers from a config; None if it is missing or null.

    Raises:
        CheckpointError: for another value.
    """
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(entry) is int for entry in value):
        raise CheckpointError(
            f"config.json has {key} {shown(value)}; it must be a list of integers."
        )
    return tuple(value)


def sizes_of(head: PublishedHead, target: Target) -> Sizes:
    """Sizes of a head with decoder layers.

    Raises:
        CheckpointError: for a config with a missing or invalid size.
    """
    layers = head.layers
    hidden, heads = whole(layers, "hidden_size"), whole(layers, "num_attention_heads")
    vocab = whole(layers, "vocab_size")
    eps = layers.get("rms_norm_eps", 1e-6)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < 1:
        raise CheckpointError(f"config.json has rms_norm_eps {shown(eps)}; it must lie in [0, 1).")
    return Sizes(
        hidden_size=hidden,
        target_hidden_size=whole(head.config, "target_hidden_size", hidden),
        intermediate_size=whole(layers, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=whole(layers, "num_key_value_heads", heads),
        head_dim=whole(layers, "head_dim", max(1, hidden // heads)),
        num_layers=whole(layers, "num_hidden_layers", most=MOST_LAYERS),
        vocab_size=vocab,
        draft_vocab_size=whole(head.config, "draft_vocab_size", vocab),
        num_features=len(named_layers(head) or target.default_layers),
        norm_eps=float(eps),
    )


def named_layers(head: PublishedHead) -> tuple[int, ...] | None:
    """Hidden layers of the target (0 is the embedding) in a head's config; None if it names none.

    Each key of the config is read by its own convention.
    """
    if head.kind == DSPARK:
        if head.wrapped:
            return ids(head.config, "aux_hidden_state_layer_ids")
        outputs = ids(head.config, "target_layer_ids")
        if outputs is None:
            outputs = ids(head.nested("dflash_config"), "target_layer_ids")
        return None if outputs is None else tuple(layer + 1 for layer in outputs)
    key = "eagle_aux_hidden_state_layer_ids"
    inputs = ids(head.config, key)
    if inputs is not None:
        return inputs
    outputs = ids(head.nested("eagle_config"), key)
    return None if outputs is None else tuple(layer + 1 for layer in outputs)


def rope_of(head: PublishedHead) -> dict[str, Any]:
    """Rotary embedding of a head, in the format of transformers 5.

    As in the engines, `rope_parameters` is read first, then `rope_theta` and `rope_scaling`.

    Raises:
        CheckpointError: for values that do not describe a rotary embedding.
    """
    layers = head.layers
    for key in ("rope_parameters", "rope_scaling"):
        if layers.get(key) is not None and not isinstance(layers[key], Mapping):
            raise CheckpointError(
                f"config.json has {key} {shown(layers[key])}; it must be an object."
            )
    rope = dict(layers.get("rope_parameters") or layers.get("rope_scaling") or {})
    theta = layers.get("rope_theta")
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = DEFAULT_THETA if theta is None else theta
    theta = rope["rope_theta"]
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta < 1e30:
        raise CheckpointError(
            f"config.json has rope_theta {shown(theta)}; it must be a number above 0."
        )
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    return rope


def same_rope(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if two rotary embeddings rotate queries and keys alike."""
    return json.dumps(_plain(one), sort_keys=True) == json.dumps(_plain(other), sort_keys=True)


def _plain(rope: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in rope.items() if value is not None}
    if kept.get("rope_type", "default") == "default":
        kept = {"rope_theta": kept.get("rope_theta", DEFAULT_THETA)}
    return {
        key: float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else value
        for key, value in kept.items()
    }


def layer_shapes(sizes: Sizes, index: int, columns: int) -> Shapes:
    """Shapes of the tensors of one decoder layer whose projections read `columns` numbers."""
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    named = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, columns),
        "self_attn.k_proj.weight": (keys, columns),
        "self_attn.v_proj.weight": (keys, columns),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    return {f"layers.{index}.{name}": shape for name, shape in named.items()}


def eagle3_shapes(sizes: Sizes) -> Shapes:
    """Shapes of the tensors that every EAGLE-3 head has."""
    hidden = sizes.hidden_size
    shapes: Shapes = {
        "fc.weight": (hidden, sizes.num_features * sizes.target_hidden_size),
        "norm.weight": (hidden,),
        "layers.0.hidden_norm.weight": (hidden,),
    }
    for index in range(sizes.num_layers):
        shapes |= layer_shapes(sizes, index, hidden if index else 2 * hidden)
    return shapes


def dspark_shapes(sizes: Sizes, rank: int, joined: bool) -> tuple[Shapes, Shapes]:
    """Shapes of the tensors that every DSpark head has, and those of its confidence head.

    Args:
        rank: rank of the Markov head.
        joined: True if the confidence head reads the Markov embedding too.
    """
    hidden = sizes.hidden_size
    shapes: Shapes = {
        "fc.weight": (hidden, sizes.num_features * sizes.target_hidden_size),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(sizes.num_layers):
        shapes |= layer_shapes(sizes, index, hidden)
        for norm in ("q_norm", "k_norm"):
            shapes[f"layers.{index}.self_attn.{norm}.weight"] = (sizes.head_dim,)
    if rank:
        shapes["markov_head.markov_w1.weight"] = (sizes.vocab_size, rank)
        shapes["markov_head.markov_w2.weight"] = (sizes.draft_vocab_size, rank)
    confidence: Shapes = {
        "confidence_head.proj.weight": (1, hidden + rank * joined),
        "confidence_head.proj.bias": (1,),
    }
    return shapes, confidence


def misshapen(
    head: PublishedHead, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, str]]:
    """Names of the tensors with a wrong shape, each with the problem in words."""
    for name, shape in shapes.items():
        tensor = head.weights.get(name)
        if tensor is not None and tuple(tensor.shape) != shape:
            yield (
                name,
                f"{name} has the shape {list(tensor.shape)}, but the config implies {list(shape)}",
            )
