"""Layouts that a head is exported in: two that every engine loads, and that of speculators.

Optional settings are written out, because engines disagree about defaults. Settings that have two dialects
are written in both. The replay runs a head through the same layouts, with each engine's reading of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.export.head import AUX, PublishedHead, Target
from forerun.export.readings import (
    DSparkReading,
    Eagle3Reading,
    draft_vocab_sizes,
    reading_of,
    rope_of,
    window_of,
)
from forerun.heads.eagle3 import FLAGS
from forerun.heads.layers import borrowed_rows
from forerun.models.architecture import Architecture

SPECULATORS = "speculators"
SPECULATORS_VERSION = "0.9.0"

Parts = tuple[dict[str, Any], dict[str, Tensor]]


@dataclass(frozen=True)
class VerifierModel:
    """A target, as exports name it and borrow from it.

    Args:
        name: id on the hub, or directory; None for a file, which has neither.
        architectures: architectures in the target's config.
        model: the target, whose embedding and output rows are copied.
    """

    name: str | None
    architectures: tuple[str, ...]
    model: CausalLM

    def lm_head(self, ids: Tensor) -> Tensor:
        """Rows of the target's output head, [m, H], found by running unit vectors through it.

        Raises:
            UnsupportedModelError: for a head that is more than one product.
        """
        rows = borrowed_rows(self.model, ids)
        if rows is None:
            raise UnsupportedModelError(
                f"the output head of {self.model.name} caps its logits or has a bias, which no head can "
                "hold; the export would draft otherwise."
            )
        return rows.float().cpu()


def whole_embedding(model: CausalLM) -> Tensor:
    """The embedding of a model, [V, H], in float32."""
    ids = torch.arange(model.vocab_size, device=model.device)
    return model.embed(ids[None])[0].float().cpu()


def target_ids(head: PublishedHead, draft_ids: str, columns: int) -> Tensor:
    """Target tokens of a draft vocabulary of `columns` tokens, by a reading's `draft_ids`; -1 for none."""
    if draft_ids == "t2d":
        return head.weights["t2d"].bool().nonzero().flatten()
    if draft_ids == "none":
        return torch.arange(columns)
    d2t = head.weights["d2t"].long()
    mapped = d2t if draft_ids == "absolute" else d2t + torch.arange(len(d2t))
    return torch.cat((mapped[:columns], torch.full((max(0, columns - len(mapped)),), -1)))


def eagle3_config(head: PublishedHead, target: Target, reading: Eagle3Reading) -> dict[str, Any]:
    """Config of an EAGLE-3 head under a reading in SpecForge's layout, with the dialects of all engines."""
    sizes, layers = head.eagle3, reading.hidden_layers
    default = layers == target.default_layers
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layers_config(head, sizes.layers, "llama", reading),
        "hidden_act": reading.activation,
        "draft_vocab_size": sizes.draft_vocab_size,
        "tie_word_embeddings": False,
        **{name: getattr(reading, name) for name in FLAGS},
        AUX: None if default else list(layers),
        "eagle_config": {
            "use_aux_hidden_state": True,
            AUX: None if default else [layer - 1 for layer in layers],
        },
    }
    if reading.window is None:
        del config["layer_types"]
    if sizes.target_hidden_size != sizes.layers.hidden_size:
        config["target_hidden_size"] = sizes.target_hidden_size
    return config


def dspark_config(head: PublishedHead, target: Target, reading: DSparkReading) -> dict[str, Any]:
    """Config of a DSpark head under a reading, in DeepSpec's own layout."""
    return {
        "architectures": ["Qwen3DSparkModel"],
        **_layers_config(head, head.dspark.layers, "qwen3", reading),
        "tie_word_embeddings": False,
        "num_target_layers": target.num_layers,
        "target_layer_ids": [layer - 1 for layer in reading.hidden_layers],
        **_block_config(head, reading),
    }


def eagle3_layout(head: PublishedHead, target: Target, verifier: VerifierModel) -> Parts:
    """Config and tensors in SpecForge's layout."""
    reading = reading_of(head, target)
    assert isinstance(reading, Eagle3Reading)
    tensors = _with_vocabulary(head, reading.draft_ids, verifier)
    config = eagle3_config(head, target, reading)
    config["draft_vocab_size"] = len(tensors["d2t"])
    return config, {
        name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()
    }


def dspark_layout(head: PublishedHead, target: Target, _: VerifierModel) -> Parts:
    """Config and tensors in DeepSpec's own layout, over the target's whole vocabulary.

    The Markov head has no bias for tokens outside a reduced draft vocabulary.

    Raises:
        UnsupportedModelError: for a head with its own output head over a reduced vocabulary.
    """
    reading, (drafted, vocab_size) = reading_of(head, target), draft_vocab_sizes(head)
    assert isinstance(reading, DSparkReading)
    if drafted < vocab_size and "lm_head.weight" in head.weights:
        raise UnsupportedModelError(
            f"{head.name} cannot be exported faithfully: it has an output head of its own over "
            f"{drafted} tokens, and SGLang drafts with the target's; train with the target's rows."
        )
    tensors = {name: part for name, part in head.weights.items() if name not in ("d2t", "t2d")}
    if drafted < vocab_size:
        name = "markov_head.markov_w2.weight"
        rows = tensors[name].new_zeros(vocab_size, tensors[name].shape[1])
        rows[target_ids(head, reading.draft_ids, drafted)] = tensors[name]
        tensors[name] = rows
    return dspark_config(head, target, reading), tensors


def speculators_layout(head: PublishedHead, target: Target, verifier: VerifierModel) -> Parts:
    """Config and tensors in the format of speculators.

    Raises:
        ConfigError: for a target without a name that speculators can load.
    """
    if verifier.name is None:
        raise ConfigError(
            f"the format of speculators names the target, and {target.name} is a file; give the id of "
            "its checkpoint on the hub with --verifier."
        )
    kind, reading = head.kind, reading_of(head, target)
    tensors = _with_vocabulary(head, reading.draft_ids, verifier)
    if isinstance(reading, Eagle3Reading):
        own: dict[str, Any] = {
            **{name: getattr(reading, name) for name in FLAGS},
            AUX: list(reading.hidden_layers),
            "embed_requires_grad": False,
        }
        steps, name = 3, "Eagle3Speculator"
        layers = _layers_config(head, head.eagle3.layers, "llama", reading)
        if reading.window is None:
            del layers["layer_types"]
    else:
        own = {
            **_block_config(head, reading),
            "aux_hidden_state_layer_ids": list(reading.hidden_layers),
            "sliding_window_non_causal": True,
        }
        steps, name = own["block_size"], "DSparkSpeculator"
        layers = _layers_config(head, head.dspark.layers, "qwen3", reading)
    # Without this tensor, speculators claims to use the target's, but reads uninitialized memory.
    if "embed_tokens.weight" not in tensors:
        embedding = whole_embedding(verifier.model)
        tensors["embed_tokens.weight"] = embedding.to(tensors["fc.weight"].dtype)
    return {
        "architectures": [name],
        "speculators_model_type": kind,
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": len(tensors["d2t"]),
        "tie_word_embeddings": False,
        **own,
        "transformer_layer_config": layers,
        "speculators_config": _method(kind, steps, verifier),
    }, tensors


def _method(kind: str, steps: int, verifier: VerifierModel) -> dict[str, Any]:
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": steps,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [greedy],
        "verifier": {
            "name_or_path": verifier.name,
            "architectures": list(verifier.architectures),
        },
    }


def _layers_config(
    head: PublishedHead,
    shape: Architecture,
    model_type: str,
    reading: Eagle3Reading | DSparkReading,
) -> dict[str, Any]:
    """Config of the decoder layers, with the rotary embedding in both dialects."""
    layers, rope = head.layers, {**rope_of(head), "rope_theta": reading.theta}
    dtype = str(head.weights["fc.weight"].dtype).removeprefix("torch.")
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    windows: dict[str, Any] = {"layer_types": ["full_attention"] * shape.num_layers}
    if reading.window is not None and window_of(head) is not None:
        windows = {key: layers[key] for key in ("layer_types", "sliding_window")}
    elif reading.window is not None:
        kinds = ["sliding_attention"] * shape.num_layers
        windows = {"layer_types": kinds, "sliding_window": reading.window}
    return {
        "model_type": model_type,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": layers.get("hidden_act", "silu"),
        "rms_norm_eps": shape.norm_eps,
        "attention_bias": bool(layers.get("attention_bias", False)),
        "mlp_bias": False,
        "max_position_embeddings": layers.get("max_position_embeddings"),
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else scaling,
        "vocab_size": shape.vocab_size,
        "dtype": dtype,
        "torch_dtype": dtype,
        **windows,
    }


def _block_config(head: PublishedHead, reading: DSparkReading) -> dict[str, Any]:
    """Config of a DSpark head's blocks, Markov head and confidence head."""
    config = head.dspark
    return {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": reading.sample_from_anchor,
        "markov_rank": config.markov_rank,
        "markov_head_type": head.config.get("markov_head_type", "vanilla"),
        "enable_confidence_head": "confidence_head.proj.weight" in head.weights,
        "confidence_head_with_markov": config.confidence == "markov",
        **({"dflash_config": {"causal": True}} if reading.causal else {}),
        # DeepSpec's class requires it, but it matters in training alone.
        "num_anchors": head.config.get("num_anchors", 512),
    }


def _with_vocabulary(
    head: PublishedHead, draft_ids: str, verifier: VerifierModel
) -> dict[str, Tensor]:
    """Tensors of a head with an output head and with d2t and t2d.

    The output head is the target's if the head has none. d2t holds offsets, t2d is a mask of the
    target's tokens.
    """
    drafted, vocab_size = draft_vocab_sizes(head)
    chosen = target_ids(head, draft_ids, drafted)
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[chosen] = True
    mapping: Mapping[str, Tensor] = {"d2t": chosen - torch.arange(len(chosen)), "t2d": mask}
    tensors = {**head.weights, **mapping}
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = verifier.lm_head(chosen).to(tensors["fc.weight"].dtype)
    return tensors
