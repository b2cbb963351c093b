"""Reading DSpark heads: three dialects of configs, with their opposite defaults, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import CheckpointError, ForerunError, UnsupportedModelError
from forerun.heads import kind_of
from forerun.heads.dspark import BlockBatch, DSparkConfig, DSparkHead
from forerun.heads.files import HeadFiles
from forerun.models.checkpoint import model_from_tensors
from tests.helpers.dspark_heads import Made, published
from tests.helpers.tiny_models import tiny_config, tiny_model


def target() -> CausalLM:
    tensors = tiny_model("llama").state_dict()
    return model_from_tensors(tiny_config("llama"), tensors, dtype="fp32", name="tiny")


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> HeadFiles:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return HeadFiles.open(folder)


def test_the_mask_that_batches_share_cannot_be_changed() -> None:
    cache = target().new_cache(2, 32)
    first, second = (
        BlockBatch.after(cache, rows, [[0] * 3] * 2).tree_mask for rows in ([0, 1], [1, 0])
    )
    assert first is not None
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0, 1] = False
    assert second is not None
    assert second.shape == (2, 3, 3)
    assert second.all()


def test_dialects_have_opposite_defaults() -> None:
    found = {}
    for layout in ("deepspec", "speculators", "dflash"):
        config, _ = published(Made(from_anchor=layout == "deepspec"), layout)
        assert "sample_from_anchor" not in config
        assert kind_of(config) == "dspark"
        found[layout] = DSparkConfig.read(config, "head")
    drafted = {layout: config.draft_tokens for layout, config in found.items()}
    assert drafted == {"deepspec": 4, "speculators": 3, "dflash": 3}
    ranks = {layout: config.markov_rank for layout, config in found.items()}
    assert ranks == {"deepspec": 5, "speculators": 5, "dflash": 0}
    # Outputs of layers, or hidden states as they are counted.
    assert {config.target_layers for config in found.values()} == {(1, 2, 3)}


def test_a_confidence_head_that_no_key_names_is_read(tmp_path: Path) -> None:
    config, tensors = published(Made(), "deepspec")
    del config["enable_confidence_head"], config["confidence_head_with_markov"]
    assert DSparkConfig.read(config, "head").confidence == ""
    head = DSparkHead.open(target(), save(tmp_path, config, tensors))
    assert head.config.confidence == "markov"
    assert head.confidence(torch.zeros(1, 24), [3]) is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"model_type": "gpt2"}, "layers of model type 'gpt2'"),
        ({"block_size": 0}, "block_size is 0; it must be a whole number from 1 to 64"),
        ({"block_size": 1, "sample_from_anchor": False}, "whole number from 2 to 64"),
        ({"mask_token_id": 61}, "mask_token_id is 61"),
        ({"mask_token_id": None}, "mask_token_id is None"),
        ({"markov_rank": None}, "markov_rank is None"),
        ({"draft_vocab_size": 62}, "draft_vocab_size is 62"),
        ({"draft_vocab_size": "all"}, "draft_vocab_size is 'all'"),
        ({"sample_from_anchor": "yes"}, "sample_from_anchor is 'yes'; it must be true or false"),
        ({"target_layer_ids": None}, "target_layer_ids is None"),
        ({"target_layer_ids": [-2]}, r"target_layer_ids is \[-2\]"),
        (
            {"target_layer_ids": None, "aux_hidden_state_layer_ids": [-1]},
            r"aux_hidden_state_layer_ids is \[-1\]",
        ),
        ({"markov_head_type": "gated"}, "a Markov head of type 'gated'"),
        ({"dflash_config": {"conv_kernel_size": 4}}, "variant with conv_kernel_size"),
        ({"projector_type": "domino"}, "variant with projector_type"),
        ({"rope_is_neox_style": False}, "a rope_is_neox_style of False, which changes the forward"),
        ({"dflash_config": {"final_logit_softcapping": 30.0}}, "a final_logit_softcapping of 30"),
    ],
)
def test_wrong_configs_are_refused(change: dict[str, Any], message: str) -> None:
    config, _ = published(Made(), "deepspec")
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        DSparkConfig.read({**config, **change}, "config.json")


def test_wrong_tensors_are_refused(tmp_path: Path) -> None:
    on, (config, tensors) = target(), published(Made(draft_vocab=37), "deepspec")
    spoiled: list[tuple[dict[str, Tensor | None], str]] = [
        ({"fc.weight": None}, r"lacks fc\.weight"),
        ({"d2t": None}, "lacks d2t"),
        ({"d2t": torch.arange(37) + tensors["d2t"]}, "must hold offsets"),
        ({"d2t": -torch.arange(37)}, "leads to a token id twice"),
        ({"confidence_head.proj.weight": torch.ones(1, 24)}, r"asks for \[1, 29\]"),
        ({"markov_head.markov_w2.weight": torch.ones(61, 5)}, r"asks for \[37, 5\]"),
        ({"layers.2.input_layernorm.weight": torch.ones(24)}, "which its config.json does not"),
        ({"norm.weight": torch.full((24,), torch.nan)}, "NaN or infinite"),
    ]
    for changes, message in spoiled:
        changed = {**tensors, **changes}
        there = {key: tensor for key, tensor in changed.items() if tensor is not None}
        with pytest.raises(ForerunError, match=message):
            DSparkHead.open(on, save(tmp_path, config, there))
    deeper = {**config, "target_layer_ids": [0, 1, 5]}
    with pytest.raises(CheckpointError, match="the target's layer 5, and tiny has 3"):
        DSparkHead.open(on, save(tmp_path, deeper, tensors))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(CheckpointError):
        DSparkHead.open(on, HeadFiles.open(tmp_path))


@pytest.mark.parametrize("layout", ["deepspec", "speculators", "dflash"])
def test_values_that_leave_the_forward_as_it_is_are_taken(layout: str) -> None:
    config, _ = published(Made(), layout)
    same = {"rope_is_neox_style": True, "partial_rotary_factor": 1.0, "logit_scale": None}
    assert DSparkConfig.read({**config, **same}, "head") == DSparkConfig.read(config, "head")
    if layout == "speculators":
        inner = {**config["transformer_layer_config"], "rope_is_neox_style": False}
        with pytest.raises(UnsupportedModelError, match="rope_is_neox_style"):
            DSparkConfig.read({**config, "transformer_layer_config": inner}, "head")
