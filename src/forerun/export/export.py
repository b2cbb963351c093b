"""`forerun export`: writes a head in the layout that every engine loads, or says why that is impossible.

The layout is SpecForge's. Optional settings are written out, because engines disagree about defaults.
Settings that have two dialects are written in both. The replay runs a head through the same layout, with
each engine's reading of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.export.head import AUX, VERSIONS, PublishedHead, Target, defects
from forerun.export.readings import Reading, reading_of, rope_of, window_of
from forerun.export.rules import check_head
from forerun.heads.eagle3 import FLAGS
from forerun.heads.files import CARD, OWN, write_head
from forerun.heads.layers import borrowed_rows


def target_ids(head: PublishedHead, draft_ids: str, columns: int) -> Tensor:
    """Target tokens of a draft vocabulary of `columns` tokens, by a reading's `draft_ids`; -1 for none."""
    if draft_ids == "t2d":
        return head.weights["t2d"].bool().nonzero().flatten()
    if draft_ids == "none":
        return torch.arange(columns)
    d2t = head.weights["d2t"].long()
    mapped = d2t if draft_ids == "absolute" else d2t + torch.arange(len(d2t))
    return torch.cat((mapped[:columns], torch.full((max(0, columns - len(mapped)),), -1)))


def config_of(head: PublishedHead, target: Target, reading: Reading) -> dict[str, Any]:
    """Config of a head under a reading, with the dialects of all engines."""
    sizes, layers, shape = head.eagle3, head.layers, head.eagle3.layers
    rope = {**rope_of(head), "rope_theta": reading.theta}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    dtype = str(head.weights["fc.weight"].dtype).removeprefix("torch.")
    default = reading.hidden_layers == target.default_layers
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": reading.activation,
        "rms_norm_eps": shape.norm_eps,
        "attention_bias": reading.qkv_bias,
        "mlp_bias": False,
        "max_position_embeddings": layers.get("max_position_embeddings"),
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else scaling,
        "vocab_size": shape.vocab_size,
        "dtype": dtype,
        "torch_dtype": dtype,
        "draft_vocab_size": sizes.draft_vocab_size,
        "tie_word_embeddings": False,
        **{name: getattr(reading, name) for name in FLAGS},
        AUX: None if default else list(reading.hidden_layers),
        "eagle_config": {
            "use_aux_hidden_state": True,
            AUX: None if default else [layer - 1 for layer in reading.hidden_layers],
        },
    }
    if reading.window is not None and window_of(head) is not None:
        config |= {key: layers[key] for key in ("layer_types", "sliding_window")}
    elif reading.window is not None:
        kinds = ["sliding_attention"] * shape.num_layers
        config |= {"layer_types": kinds, "sliding_window": reading.window}
    if sizes.target_hidden_size != shape.hidden_size:
        config["target_hidden_size"] = sizes.target_hidden_size
    return config


def layout_of(head: PublishedHead, target: Target, model: CausalLM) -> PublishedHead:
    """A head with offsets in d2t, a mask of the target's tokens in t2d, and output rows of its own.

    Args:
        model: the target, whose output rows are copied if the head has none.

    Raises:
        UnsupportedModelError: for a target whose output head is more than one product.
    """
    reading, (drafted, vocab_size) = reading_of(head, target), head.vocab_sizes
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
    config = {**config_of(head, target, reading), "draft_vocab_size": len(chosen)}
    renamed = {name.replace("layers.0.", "midlayer."): part for name, part in tensors.items()}
    # Matrices in few bits are written in the type that they were read in.
    return replace(head, config=config, tensors=renamed, in_few_bits=False)


def export_head(
    head: PublishedHead, target: Target, model: CausalLM, engines: Sequence[str] = ()
) -> PublishedHead:
    """A head in the portable layout, checked for the engines that are to load it; nothing is written.

    Args:
        model: the target, whose output rows are copied.
        engines: engines that are to load it; empty for all.

    Raises:
        UnsupportedModelError: for a head that one of the engines would not load, or would misread.
    """
    head.check_kind()
    result = layout_of(head, target, model)
    flaws = defects(check_head(result, target, engines or tuple(VERSIONS)))
    if flaws:
        reasons = "; ".join(dict.fromkeys(finding.problem for finding in flaws))
        raise UnsupportedModelError(
            f"{head.name} cannot be exported faithfully: {reasons}. Name with --engines the engines that "
            "need to load it, or train without what they lack."
        )
    return result


def write_export(head: PublishedHead, directory: Path, card: str) -> None:
    """Write an exported head and the card of the original, completely or not at all.

    Raises:
        ConfigError: for a directory that is not empty.
        CheckpointError: if it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(
            f"{directory} exists already; give a directory that does not, or is empty."
        )
    texts = {OWN: json.dumps(head.record, indent=2) + "\n", **({CARD: card} if card else {})}
    write_head(directory, head.config, head.tensors, texts)
