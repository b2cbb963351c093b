"""Layouts that a head is exported in: two that every engine loads, and that of speculators.

Optional settings are written out, because engines disagree about defaults. Settings that have two dialects
are written in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.export.forwards import target_ids_of
from forerun.export.head import DSPARK, EAGLE3, PublishedHead
from forerun.export.readings import AUX, DSparkReading, Eagle3Reading, reading_of, window_of
from forerun.export.sizes import Sizes, rope_of, sizes_of, whole
from forerun.export.target import Target
from forerun.heads.layers import borrowed_rows

SPECULATORS = "speculators"
SPECULATORS_VERSION = "0.9.0"

Parts = tuple[dict[str, Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Verifier:
    """A target, as exports name it and borrow from it.

    Args:
        name: id on the hub, or directory; None for a file, which has neither.
        architectures: architectures in the target's config.
        model: the target, whose embedding and output rows are copied.
    """

    name: str | None
    architectures: tuple[str, ...]
    model: CausalLM

    def embedding(self) -> Tensor:
        """The target's embedding, [V, H]."""
        ids = torch.arange(self.model.vocab_size, device=self.model.device)
        return self.model.embed(ids[None])[0].float().cpu()

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


def eagle3_profile(head: PublishedHead, target: Target, verifier: Verifier) -> Parts:
    """Config and tensors in SpecForge's layout, with the dialects of all three engines."""
    reading, sizes = _eagle3(head, target), sizes_of(head, target)
    layers = reading.hidden_layers
    default = layers == target.default_layers
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layers_config(head, sizes, "llama"),
        **({} if reading.window is None else _windows(head, sizes)),
        "draft_vocab_size": len(_draft_vocabulary(head, reading.draft_ids, sizes)),
        "tie_word_embeddings": False,
        **_flags(reading),
        AUX: None if default else list(layers),
        "eagle_config": {
            "use_aux_hidden_state": True,
            AUX: None if default else [layer - 1 for layer in layers],
        },
    }
    if sizes.target_hidden_size != sizes.hidden_size:
        config["target_hidden_size"] = sizes.target_hidden_size
    tensors = _with_vocabulary(head, reading.draft_ids, sizes, verifier)
    return config, {
        name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()
    }


def dspark_profile(head: PublishedHead, target: Target, _: Verifier) -> Parts:
    """Config and tensors in DeepSpec's own layout, over the target's whole vocabulary.

    The Markov head has no bias for tokens outside a reduced draft vocabulary.

    Raises:
        UnsupportedModelError: for a head with its own output head over a reduced vocabulary.
    """
    reading, sizes = _dspark(head, target), sizes_of(head, target)
    if _is_reduced(sizes) and "lm_head.weight" in head.weights:
        raise UnsupportedModelError(
            f"{head.name} cannot be exported faithfully: it has an output head of its own over "
            f"{sizes.draft_vocab_size} tokens, and SGLang drafts with the target's; train with the "
            "target's rows."
        )
    config = {
        "architectures": ["Qwen3DSparkModel"],
        **_layers_config(head, sizes, "qwen3"),
        **_windows(head, sizes),
        "tie_word_embeddings": False,
        "num_target_layers": target.num_layers,
        "target_layer_ids": [layer - 1 for layer in reading.hidden_layers],
        **_block_config(head, reading),
    }
    tensors = {name: part for name, part in head.weights.items() if name not in ("d2t", "t2d")}
    if _is_reduced(sizes):
        chosen = _draft_vocabulary(head, reading.draft_ids, sizes)
        name = "markov_head.markov_w2.weight"
        rows = tensors[name].new_zeros(sizes.vocab_size, tensors[name].shape[1])
        rows[chosen] = tensors[name]
        tensors[name] = rows
    return config, tensors


def speculators_profile(head: PublishedHead, target: Target, verifier: Verifier) -> Parts:
    """Config and tensors in the format of speculators.

    Raises:
        ConfigError: for a target without a name that speculators can load.
    """
    if verifier.name is None:
        raise ConfigError(
            f"the format of speculators names the target, and {target.name} is a file; give the id of "
            "its checkpoint on the hub with --verifier."
        )
    sizes, kind = sizes_of(head, target), head.kind
    reading = reading_of(head, target)
    if kind == EAGLE3:
        own: dict[str, Any] = {
            **_flags(_eagle3(head, target)),
            AUX: list(reading.hidden_layers),
            "embed_requires_grad": False,
        }
        steps, name, model_type = 3, "Eagle3Speculator", "llama"
    else:
        own = {
            **_block_config(head, _dspark(head, target)),
            "aux_hidden_state_layer_ids": list(reading.hidden_layers),
            "sliding_window_non_causal": True,
        }
        steps, name, model_type = own["block_size"], "DSparkSpeculator", "qwen3"
    tensors = _with_vocabulary(head, reading.draft_ids, sizes, verifier)
    # Without this tensor, speculators claims to use the target's, but reads uninitialized memory.
    if "embed_tokens.weight" not in tensors:
        tensors["embed_tokens.weight"] = verifier.embedding().to(tensors["fc.weight"].dtype)
    layers = _layers_config(head, sizes, model_type)
    if kind == DSPARK or reading.window is not None:
        layers |= _windows(head, sizes)
    return {
        "architectures": [name],
        "speculators_model_type": kind,
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": len(_draft_vocabulary(head, reading.draft_ids, sizes)),
        "tie_word_embeddings": False,
        **own,
        "transformer_layer_config": layers,
        "speculators_config": _method(kind, steps, verifier),
    }, tensors


def _method(kind: str, steps: int, verifier: Verifier) -> dict[str, Any]:
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


def _eagle3(head: PublishedHead, target: Target) -> Eagle3Reading:
    reading = reading_of(head, target)
    if not isinstance(reading, Eagle3Reading):
        raise UnsupportedModelError(
            f"{head.name} is a {head.kind} head, which cannot become EAGLE-3; give --to {head.kind}."
        )
    return reading


def _dspark(head: PublishedHead, target: Target) -> DSparkReading:
    reading = reading_of(head, target)
    if not isinstance(reading, DSparkReading):
        raise UnsupportedModelError(
            f"{head.name} is an {head.kind} head, which cannot become DSpark; give --to {head.kind}."
        )
    return reading


def _layers_config(head: PublishedHead, sizes: Sizes, model_type: str) -> dict[str, Any]:
    """Config of the decoder layers, with the rotary embedding in both dialects."""
    layers, rope = head.layers, rope_of(head)
    dtype = str(head.weights["fc.weight"].dtype).removeprefix("torch.")
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {
        "model_type": model_type,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": layers.get("hidden_act", "silu"),
        "rms_norm_eps": sizes.norm_eps,
        "attention_bias": bool(layers.get("attention_bias", False)),
        "mlp_bias": False,
        "max_position_embeddings": layers.get("max_position_embeddings"),
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else scaling,
        "vocab_size": sizes.vocab_size,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def _windows(head: PublishedHead, sizes: Sizes) -> dict[str, Any]:
    """Config of the layers' windows; without windows unless the head's config has them."""
    if window_of(head) is None:
        return {"layer_types": ["full_attention"] * sizes.num_layers}
    return {key: head.layers[key] for key in ("layer_types", "sliding_window")}


def _flags(reading: Eagle3Reading) -> dict[str, bool]:
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {name: getattr(reading, name) for name in names}


def _block_config(head: PublishedHead, reading: DSparkReading) -> dict[str, Any]:
    """Config of a DSpark head's blocks, Markov head and confidence head."""
    mask = head.config.get("mask_token_id", head.nested("dflash_config").get("mask_token_id"))
    rank = whole(head.config, "markov_rank")
    confidence = head.weights.get("confidence_head.proj.weight")
    joined = confidence is not None and confidence.shape[-1] > whole(head.layers, "hidden_size")
    return {
        "block_size": whole(head.config, "block_size"),
        "mask_token_id": mask,
        "sample_from_anchor": reading.sample_from_anchor,
        "markov_rank": rank,
        "markov_head_type": head.config.get("markov_head_type", "vanilla"),
        "enable_confidence_head": confidence is not None,
        "confidence_head_with_markov": joined,
        # DeepSpec's class requires it, but it matters in training alone.
        "num_anchors": head.config.get("num_anchors", 512),
    }


def _is_reduced(sizes: Sizes) -> bool:
    return sizes.draft_vocab_size < sizes.vocab_size


def _draft_vocabulary(head: PublishedHead, draft_ids: str, sizes: Sizes) -> Tensor:
    """Target tokens that a head can draft, by draft id, [Vd]."""
    return target_ids_of(head.weights, draft_ids, sizes.draft_vocab_size)


def _with_vocabulary(
    head: PublishedHead, draft_ids: str, sizes: Sizes, verifier: Verifier
) -> dict[str, Tensor]:
    """Tensors of a head with an output head and with d2t and t2d.

    The output head is the target's if the head has none. d2t holds offsets, t2d is a mask of the
    target's tokens.
    """
    chosen = _draft_vocabulary(head, draft_ids, sizes)
    mask = torch.zeros(sizes.vocab_size, dtype=torch.bool)
    mask[chosen] = True
    mapping: Mapping[str, Tensor] = {"d2t": chosen - torch.arange(len(chosen)), "t2d": mask}
    tensors = {**head.weights, **mapping}
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = verifier.lm_head(chosen).to(tensors["fc.weight"].dtype)
    return tensors
