"""Readings of a head's forward: as it was trained, and as each engine reads the same files.

An engine that misreads a flag, or takes hidden layers one further, raises no error and drafts badly. So
every setting that can be read in more than one way is a field here. The check compares the fields, and the
replay runs them. The readings follow the engines' sources; see `findings.VERSIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from forerun.export.findings import LLAMA_CPP, SGLANG, VLLM
from forerun.export.head import PublishedHead
from forerun.export.sizes import Sizes, ids, named_layers, rope_of, sizes_of
from forerun.export.target import Target

AUX = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Eagle3Reading:
    """Settings that an EAGLE-3 forward depends on, besides its tensors.

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


@dataclass(frozen=True)
class DSparkReading:
    """Settings that a DSpark forward depends on, besides its tensors.

    Attributes:
        sample_from_anchor: True if the anchor's slot predicts the next token. Otherwise that slot is
            skipped, and slot j predicts the token at its own place.
        hidden_layers: hidden layers of the target; i is the output of its first i layers.
        draft_ids: content of d2t, as for EAGLE-3.
        lm_head, embedding: `own` or the `target`'s.
        causal: True if slots see only earlier slots.
        window: number of previous tokens that attention sees; None for all.
        theta: base of the rotary embedding.
    """

    sample_from_anchor: bool
    hidden_layers: tuple[int, ...]
    draft_ids: str
    lm_head: str
    embedding: str
    causal: bool
    window: int | None
    theta: float


Reading = Eagle3Reading | DSparkReading


def eagle3_reading(head: PublishedHead, target: Target, engine: str | None = None) -> Eagle3Reading:
    """Reading of an EAGLE-3 head by an engine; None for the head as it was trained.

    Raises:
        CheckpointError: for a config that states no sizes.
    """
    sizes = sizes_of(head, target)
    layers, weights = head.layers, head.weights
    trained = engine is None
    return Eagle3Reading(
        norm_before_residual=_norm_before_residual(head, engine),
        norm_before_fc=_flag(head, "norm_before_fc", inner=engine != LLAMA_CPP),
        fc_norm=engine != LLAMA_CPP
        and (_flag(head, "fc_norm") or (engine in (SGLANG, None) and _flag(head, "use_aux_norm"))),
        norm_output=engine != LLAMA_CPP and _flag(head, "norm_output"),
        hidden_layers=_eagle3_layers(head, target, engine),
        draft_ids=_draft_ids(head, sizes, trained),
        lm_head=_eagle3_lm_head(head, engine),
        later_norm="hidden_norm"
        if engine == SGLANG and sizes.num_layers > 1
        else "input_layernorm",
        qkv_bias=engine != SGLANG and "layers.0.self_attn.q_proj.bias" in weights,
        fc_bias="fc.bias" in weights and (engine != SGLANG or bool(head.config.get("bias"))),
        window=window_of(head) if engine in (VLLM, None) else None,
        activation="silu" if engine == LLAMA_CPP else str(layers.get("hidden_act", "silu")),
        theta=_theta(head, target, trained),
    )


def dspark_reading(head: PublishedHead, target: Target, engine: str | None = None) -> DSparkReading:
    """Reading of a DSpark head by an engine; None for the head as it was trained.

    Raises:
        CheckpointError: for a config that states no sizes, or names no hidden layers.
    """
    sizes = sizes_of(head, target)
    own = set() if engine == SGLANG else set(head.weights)
    return DSparkReading(
        sample_from_anchor=_sample_from_anchor(head, engine),
        hidden_layers=trained_layers(head) or named_layers(head) or ()
        if engine is None
        else named_layers(head) or (),
        draft_ids=_draft_ids(head, sizes, engine is None),
        lm_head="own" if "lm_head.weight" in own else "target",
        embedding="own" if "embed_tokens.weight" in own else "target",
        causal=bool(head.nested("dflash_config").get("causal", False)),
        window=None if engine == LLAMA_CPP else window_of(head),
        theta=_theta(head, target, engine is None),
    )


def reading_of(head: PublishedHead, target: Target, engine: str | None = None) -> Reading:
    """Reading of an EAGLE-3 or DSpark head by an engine; None for the head as it was trained."""
    read = eagle3_reading if head.kind == "eagle3" else dspark_reading
    return read(head, target, engine)


def trained_layers(head: PublishedHead) -> tuple[int, ...] | None:
    """Hidden layers that a head was trained on, from forerun.json; None if it names none."""
    return ids(head.record, "hidden_layers")


def window_of(head: PublishedHead) -> int | None:
    """Sliding window of a head's layers; None if its config has none."""
    layers = head.layers
    kinds = layers.get("layer_types")
    window = layers.get("sliding_window")
    if not isinstance(window, int) or isinstance(window, bool) or not isinstance(kinds, list):
        return None
    return window if "sliding_attention" in kinds else None


def looks_absolute(head: PublishedHead, sizes: Sizes) -> bool:
    """True if d2t holds target ids instead of offsets, judged by t2d or by the range of ids."""
    d2t, t2d = head.weights.get("d2t"), head.weights.get("t2d")
    if d2t is None or d2t.ndim != 1 or not len(d2t):
        return False
    values = d2t.long()
    shifted = values + torch.arange(len(values))
    if t2d is not None and t2d.shape == (sizes.vocab_size,):
        chosen = t2d.bool().nonzero().flatten()
        return _same(values, chosen) and not _same(shifted, chosen)
    fits = (
        len(set(values.tolist())) == len(values)
        and values.min() >= 0
        and values.max() < sizes.vocab_size
    )
    return bool(fits and shifted.max() >= sizes.vocab_size)


def _same(values: torch.Tensor, chosen: torch.Tensor) -> bool:
    return torch.equal(values.sort().values, chosen)


def _flag(head: PublishedHead, key: str, *, inner: bool = True) -> bool:
    """A flag at the top level of the config, or inside `eagle_config`."""
    value: Any = head.config.get(key)
    if value is None and inner:
        value = head.nested("eagle_config").get(key)
    return bool(value)


def _norm_before_residual(head: PublishedHead, engine: str | None) -> bool:
    if engine == SGLANG:  # Its residual is always the feature itself.
        return False
    value = head.config.get("norm_before_residual")
    if value is None:
        return engine in (VLLM, None) and head.wrapped
    return bool(value)


def _eagle3_layers(head: PublishedHead, target: Target, engine: str | None) -> tuple[int, ...]:
    if engine is None:
        return trained_layers(head) or named_layers(head) or target.default_layers
    if engine == SGLANG:
        outputs = ids(head.nested("eagle_config"), AUX)
        return tuple(layer + 1 for layer in outputs) if outputs else target.default_layers
    return ids(head.config, AUX) or target.default_layers


def _draft_ids(head: PublishedHead, sizes: Sizes, trained: bool) -> str:
    if "d2t" not in head.weights:
        known = trained and sizes.draft_vocab_size < sizes.vocab_size and "t2d" in head.weights
        return "t2d" if known else "none"
    return "absolute" if trained and looks_absolute(head, sizes) else "offsets"


def _eagle3_lm_head(head: PublishedHead, engine: str | None) -> str:
    if engine == SGLANG and head.config.get("tie_word_embeddings"):
        return "embedding"
    if engine == SGLANG and head.config.get("draft_vocab_size") is None:
        return "target"
    return "own" if "lm_head.weight" in head.weights else "target"


def _sample_from_anchor(head: PublishedHead, engine: str | None) -> bool:
    value = head.config.get("sample_from_anchor")
    if value is not None:
        return bool(value)
    if engine in (VLLM, None):
        return not head.wrapped
    if engine == LLAMA_CPP:
        return not {"transformer_layer_config", "aux_hidden_state_layer_ids"} & set(head.config)
    return True


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
