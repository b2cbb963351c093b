"""Layouts that a head is exported in, one a kind of head, which every engine loads.

Optional settings are written out, because engines disagree about defaults. Settings that have two dialects
are written in both. The replay runs a head through the same layouts, with each engine's reading of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import UnsupportedModelError
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

Parts = tuple[dict[str, Any], dict[str, Tensor]]


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
    config = head.dspark
    return {
        "architectures": ["Qwen3DSparkModel"],
        **_layers_config(head, config.layers, "qwen3", reading),
        "tie_word_embeddings": False,
        "num_target_layers": target.num_layers,
        "target_layer_ids": [layer - 1 for layer in reading.hidden_layers],
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


def eagle3_layout(head: PublishedHead, target: Target, model: CausalLM) -> Parts:
    """Config and tensors in SpecForge's layout, with offsets in d2t and a mask of the target's tokens in t2d.

    The output head is the target's if the head has none.

    Raises:
        UnsupportedModelError: for a target whose output head is more than one product.
    """
    reading, (drafted, vocab_size) = reading_of(head, target), draft_vocab_sizes(head)
    assert isinstance(reading, Eagle3Reading)
    chosen = target_ids(head, reading.draft_ids, drafted)
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[chosen] = True
    tensors = {**head.weights, "d2t": chosen - torch.arange(len(chosen)), "t2d": mask}
    if "lm_head.weight" not in tensors:
        rows = borrowed_rows(model, chosen)
        if rows is None:
            raise UnsupportedModelError(
                f"the output head of {model.name} caps its logits or has a bias, which no head can hold; "
                "the export would draft otherwise."
            )
        tensors["lm_head.weight"] = rows.cpu().to(tensors["fc.weight"].dtype)
    config = {**eagle3_config(head, target, reading), "draft_vocab_size": len(chosen)}
    renamed = {name.replace("layers.0.", "midlayer."): part for name, part in tensors.items()}
    return config, renamed


def dspark_layout(head: PublishedHead, target: Target, _: CausalLM) -> Parts:
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
