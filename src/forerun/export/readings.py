"""Readings of a head's forward: as it was trained, and as each engine reads the same files.

An engine that misreads a flag, or takes hidden layers one further, raises no error and drafts badly. So
every setting that can be read in more than one way is a field here. The check compares the fields, and the
replay runs them. The readings follow the engines' sources; see `findings.VERSIONS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from forerun.errors import CheckpointError, shown
from forerun.export.head import (
    AUX,
    CONFIG,
    LLAMA_CPP,
    SGLANG,
    TITLES,
    VERSIONS,
    VLLM,
    Finding,
    PublishedHead,
    Target,
    wrong,
)
from forerun.heads.config import layer_ids

DEFAULT_THETA = 10000.0


@dataclass(frozen=True)
class Reading:
    """Settings that a head's forward depends on, besides its tensors.

    Attributes:
        norm_before_residual: True if the layer's residual is the normed feature, not the feature.
        norm_before_fc: True for one norm over all fused features.
        fc_norm: True for a norm of each fused feature.
        norm_output: True if the next step reads the normed output, not the output.
        hidden_layers: hidden layers of the target; i is the output of its first i layers.
        draft_ids: content of d2t: `offsets`, `absolute` ids, or `none` if draft ids are target ids;
            `t2d` if only t2d has the ids.
        lm_head: `own`, the `target`'s, or the `embedding`.
        later_norm: name of the norm before the attention of layers after the first.
        qkv_bias, fc_bias: True if these biases are added.
        window: number of previous tokens that attention sees; None for all.
        activation: activation of the MLP.
        theta: base of the rotary embedding.
    """

    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    hidden_layers: tuple[int, ...]
    draft_ids: str
    lm_head: str
    later_norm: str
    qkv_bias: bool
    fc_bias: bool
    window: int | None
    activation: str
    theta: float


def reading_of(head: PublishedHead, target: Target, engine: str | None = None) -> Reading:
    """Reading of a head by an engine; None for the head as it was trained.

    Raises:
        CheckpointError: for a config with missing or impossible values.
        UnsupportedModelError: for a head that forerun does not run.
    """
    config, weights, trained = head.eagle3, head.weights, engine is None
    sglang, llama_cpp = engine == SGLANG, engine == LLAMA_CPP

    def on(key: str) -> bool:
        """A flag at the top level of the config, or inside `eagle_config`."""
        inner = None if llama_cpp else head.nested("eagle_config").get(key)
        return bool(inner if head.config.get(key) is None else head.config[key])

    residual = head.config.get("norm_before_residual")
    if residual is None:
        residual = engine in (VLLM, None) and head.wrapped
    lm_head = "own" if "lm_head.weight" in weights else "target"
    if sglang and head.config.get("draft_vocab_size") is None:
        lm_head = "target"
    if sglang and head.config.get("tie_word_embeddings"):
        lm_head = "embedding"
    named = layer_ids(head.config, AUX, CONFIG, 0)
    if sglang:
        named = layer_ids(head.nested("eagle_config"), AUX, CONFIG, 1)
    if trained:
        named = layer_ids(head.record, "hidden_layers", "forerun.json", 0) or config.hidden_layers
    more_norms = not llama_cpp and (on("fc_norm") or (engine != VLLM and on("use_aux_norm")))
    later = "hidden_norm" if sglang and config.layers.num_layers > 1 else "input_layernorm"
    return Reading(
        # SGLang's residual is always the feature itself.
        norm_before_residual=not sglang and bool(residual),
        norm_before_fc=on("norm_before_fc"),
        fc_norm=more_norms,
        norm_output=not llama_cpp and on("norm_output"),
        hidden_layers=named or target.default_layers,
        draft_ids=_draft_ids(head, trained),
        lm_head=lm_head,
        later_norm=later,
        qkv_bias=not sglang and "layers.0.self_attn.q_proj.bias" in weights,
        fc_bias="fc.bias" in weights and (not sglang or bool(head.config.get("bias"))),
        window=window_of(head) if engine in (VLLM, None) else None,
        activation="silu" if llama_cpp else str(head.layers.get("hidden_act", "silu")),
        theta=_theta(head, target, trained),
    )


def window_of(head: PublishedHead) -> int | None:
    """Sliding window of a head's layers; None if its config has none."""
    kinds, window = head.layers.get("layer_types"), head.layers.get("sliding_window")
    if type(window) is not int or not isinstance(kinds, list):
        return None
    return window if "sliding_attention" in kinds else None


def looks_absolute(head: PublishedHead) -> bool:
    """True if d2t holds target ids instead of offsets, judged by t2d or by the range of ids."""
    d2t, t2d = head.weights.get("d2t"), head.weights.get("t2d")
    if d2t is None or d2t.ndim != 1 or not len(d2t):
        return False
    values, vocab_size = d2t.long(), head.vocab_sizes[1]
    shifted = values + torch.arange(len(values))
    if t2d is not None and t2d.shape == (vocab_size,):
        chosen = t2d.bool().nonzero().flatten()
        return _same(values, chosen) and not _same(shifted, chosen)
    distinct = len(set(values.tolist())) == len(values)
    fits = distinct and values.min() >= 0 and values.max() < vocab_size
    return bool(fits and shifted.max() >= vocab_size)


def _same(values: torch.Tensor, chosen: torch.Tensor) -> bool:
    return torch.equal(values.sort().values, chosen)


def _draft_ids(head: PublishedHead, trained: bool) -> str:
    if "d2t" not in head.weights:
        drafted, all_tokens = head.vocab_sizes
        known = trained and drafted < all_tokens and "t2d" in head.weights
        return "t2d" if known else "none"
    return "absolute" if trained and looks_absolute(head) else "offsets"


def _theta(head: PublishedHead, target: Target, trained: bool) -> float:
    layers = head.layers
    named = layers.get("rope_theta") is not None or any(
        isinstance(layers.get(key), dict) and layers[key].get("rope_theta") is not None
        for key in ("rope_parameters", "rope_scaling")
    )
    theta = rope_of(head)["rope_theta"]
    # A head whose config names no theta is assumed to be trained with its target's.
    if trained and not named:
        theta = target.rope.get("rope_theta", theta)
    return float(theta)


def rope_of(head: PublishedHead) -> dict[str, Any]:
    """Rotary embedding of a head, in the format of transformers 5.

    As in the engines, `rope_parameters` is read first, then `rope_theta` and `rope_scaling`.

    Raises:
        CheckpointError: for values that do not describe a rotary embedding.
    """
    layers = head.layers
    for key in ("rope_parameters", "rope_scaling"):
        if layers.get(key) is not None and not isinstance(layers[key], Mapping):
            raise CheckpointError(f"{CONFIG}: {key} is {shown(layers[key])}; it must be an object.")
    rope = dict(layers.get("rope_parameters") or layers.get("rope_scaling") or {})
    theta = layers.get("rope_theta")
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = DEFAULT_THETA if theta is None else theta
    theta = rope["rope_theta"]
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta < 1e30:
        raise CheckpointError(
            f"{CONFIG}: rope_theta is {shown(theta)}; it must be a number above 0."
        )
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    return rope


def same_rope(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """True if two rotary embeddings rotate queries and keys alike."""
    return json.dumps(_plain(first), sort_keys=True) == json.dumps(_plain(second), sort_keys=True)


def _plain(rope: Mapping[str, Any]) -> dict[str, Any]:
    stated = {key: value for key, value in rope.items() if value is not None}
    if stated.get("rope_type", "default") == "default":
        stated = {"rope_theta": stated.get("rope_theta", DEFAULT_THETA)}
    return {key: float(value) if type(value) is int else value for key, value in stated.items()}


def differing(trained: Reading, read: Reading) -> tuple[str, ...]:
    """Names of the fields in which two readings of one head differ."""
    names = [field.name for field in fields(trained)]
    return tuple(name for name in names if getattr(trained, name) != getattr(read, name))


def reading_findings(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """A finding for each engine and each field that the engine reads differently."""
    trained = reading_of(head, target)
    for engine in VERSIONS:
        read = reading_of(head, target, engine)
        for field in differing(trained, read):
            trap = {"hidden_layers": "layer_ids", "draft_ids": "d2t", "theta": "rope"}
            problem = because(field, engine, trained, read)
            yield from wrong(engine, trap.get(field, field), problem, _remedy(field, engine))


def because(field: str, engine: str, trained: Reading, read: Reading) -> str:
    """Explain in a clause how a difference in one field changes an engine's drafts."""
    was, now = getattr(trained, field), getattr(read, field)
    values = {"engine": TITLES[engine], "field": field, "trained": _shown(was), "read": _shown(now)}
    ignored = was is True and now is False
    return _WORDS.get(field, _IGNORED if ignored else _PLAIN).format(**values)


_IGNORED = "{engine} ignores {field}={trained}"
_PLAIN = "{engine} reads {field} as {read}, but the head was trained with {trained}"
_WORDS = {
    "hidden_layers": "{engine} feeds it the hidden layers {read}, but it was trained on {trained}, where "
    "i is the output of the target's first i layers",
    "draft_ids": "{engine} reads the draft vocabulary as {read}, but d2t holds {trained}",
    "theta": "config.json names no rope_theta, so {engine} takes {read}, not the target's {trained}",
}
_REMEDIES = {
    "draft_ids": "write int64 offsets d2t[i] = target id - i",
    "lm_head": "write tie_word_embeddings=false and draft_vocab_size, and leave out a copy of the target's",
    "later_norm": "train one layer",
    "qkv_bias": "train without attention_bias",
    "fc_bias": "train fc without a bias",
    "window": "train with full attention",
    "activation": "train with silu",
    "theta": "write rope_theta and rope_parameters",
}


def _remedy(field: str, engine: str) -> str:
    if field == "hidden_layers":
        if engine == SGLANG:
            return f"write i - 1 for each into eagle_config.{AUX}"
        return f"write them into {AUX} at the top level"
    if field == "norm_before_residual" and engine == SGLANG:
        return "train with norm_before_residual=false; SGLang has no other residual"
    if engine == LLAMA_CPP and field in ("fc_norm", "norm_output"):
        return "train without it, or do not serve the head there"
    return _REMEDIES.get(field, f"write {field} into config.json")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    if isinstance(value, float):
        return f"{value:g}"
    words = {
        "none": "the target's first ids",
        "absolute": "target ids",
        "t2d": "only what t2d says",
    }
    return words.get(str(value), str(value))
