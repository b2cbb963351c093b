"""Random layers behind an early exit, as they are trained and as they draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.heads.files import write_head
from forerun.heads.layer_skip import ARCHITECTURE, LayerSkipConfig, LayerSkipHead
from forerun.heads.layers import borrowed_rows
from forerun.training.layer_skip import LayerSkipModule


def config_of(target: CausalLM, draft_vocab: int, exit_layer: int = 1) -> dict[str, Any]:
    """The content of a config.json; sizes other than the target's fit no block or line."""
    return {
        "architectures": [ARCHITECTURE],
        "hidden_size": target.hidden_size,
        "intermediate_size": 9,
        "num_attention_heads": 1 if target.hidden_size % 3 else 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "head_dim": 6,
        "rms_norm_eps": 1e-5,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_context,
        "rope_theta": 500.0,
        "exit_layer": exit_layer,
        "num_target_layers": target.num_layers,
        "draft_vocab_size": draft_vocab,
    }


def module_of(target: CausalLM, ids: Tensor, exit_layer: int = 1, seed: int = 0) -> LayerSkipModule:
    """As it is trained, for the tokens `ids` of the target."""
    config = LayerSkipConfig.read(config_of(target, len(ids), exit_layer), "layer")
    rows = borrowed_rows(target, ids)
    assert rows is not None
    module = LayerSkipModule(config, rows, torch.ones(target.hidden_size))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            scale = 0.3 if name.endswith("norm.weight") else 1.5 * weight.shape[-1] ** -0.5
            weight.copy_(noise * scale + (1.0 if name.endswith("norm.weight") else 0.0))
    return module


def tensors_of(target: CausalLM, module: LayerSkipModule, ids: Tensor) -> dict[str, Tensor]:
    """As it is written."""
    return module.published(None if len(ids) == target.vocab_size else ids)


def head_of(target: CausalLM, ids: Tensor, exit_layer: int = 1, seed: int = 0) -> LayerSkipHead:
    """As it drafts."""
    config = LayerSkipConfig.read(config_of(target, len(ids), exit_layer), "layer")
    module = module_of(target, ids, exit_layer, seed)
    return LayerSkipHead(target, config, tensors_of(target, module, ids), "layer")


def write(folder: Path, target: CausalLM, ids: Tensor, exit_layer: int = 1, seed: int = 0) -> Path:
    """Its directory."""
    module = module_of(target, ids, exit_layer, seed)
    tensors = tensors_of(target, module, ids)
    write_head(folder, config_of(target, len(ids), exit_layer), tensors)
    return folder
