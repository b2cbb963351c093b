"""Reading EAGLE heads: both dialects of configs, with their opposite defaults, and what is refused."""

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
from forerun.heads.eagle3 import Eagle3Config, Eagle3Head, default_layers, read_tensors
from forerun.heads.files import HeadFiles
from forerun.models.checkpoint import model_from_tensors
from tests.helpers.eagle_heads import Made, published
from tests.helpers.tiny_models import tiny_config, tiny_model


def target() -> CausalLM:
    tensors = tiny_model("llama").state_dict()
    return model_from_tensors(tiny_config("llama"), tensors, dtype="fp32", name="tiny")


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> HeadFiles:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return HeadFiles.open(folder)


def test_dialects_have_opposite_defaults() -> None:
    native, _ = published(Made(), "vllm")
    wrapped, _ = published(Made(norm_before_residual=True), "speculators")
    assert "norm_before_residual" not in native
    assert "norm_before_residual" not in wrapped
    assert not Eagle3Config.read(native, "head").norm_before_residual
    assert Eagle3Config.read(wrapped, "head").norm_before_residual


def test_a_norm_of_each_state_has_two_names() -> None:
    config, _ = published(Made(), "vllm")
    assert not Eagle3Config.read(config, "head").fc_norm
    for name in ("fc_norm", "use_aux_norm"):
        assert Eagle3Config.read({**config, name: True}, "head").fc_norm
        assert Eagle3Config.read({**config, "eagle_config": {name: True}}, "head").fc_norm


def test_layers_are_inputs_or_outputs_by_where_they_are_named() -> None:
    config, _ = published(Made(), "vllm")
    ids = config.pop("eagle_aux_hidden_state_layer_ids")
    assert ids == [0, 2, 3]
    assert Eagle3Config.read(config, "head").hidden_layers is None
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}
    assert Eagle3Config.read(config, "head").hidden_layers == (1, 3, 4)
    assert default_layers(30) == (2, 15, 27)


def test_the_targets_token_of_a_draft_token_is_its_index_plus_an_offset(tmp_path: Path) -> None:
    config, tensors = published(Made(), "vllm")
    vocabulary = Eagle3Head.open(target(), save(tmp_path, config, tensors)).vocabulary
    assert vocabulary is not None
    assert torch.equal(torch.tensor(vocabulary.token_ids), tensors["t2d"].nonzero()[:, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"model_type": "gpt2"}, "layers of model type 'gpt2'"),
        ({"num_attention_heads": -4}, "num_attention_heads is -4"),
        ({"norm_output": "yes"}, "norm_output is 'yes'"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm are both true"),
        (
            {"draft_vocab_size": 900},
            "draft_vocab_size is 900; it must be a whole number from 1 to 61",
        ),
        ({"draft_vocab_size": 1.5}, r"draft_vocab_size is 1\.5"),
        ({"eagle_aux_hidden_state_layer_ids": "2"}, "layer_ids is '2'"),
        (
            {"eagle_aux_hidden_state_layer_ids": [-1, 2]},
            r"\[-1, 2\]; it must list layers of the target",
        ),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "reads no hidden states but the last"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope"),
        ({"hidden_act": "relu2"}, "an activation 'relu2'; those of"),
        ({"rope_is_neox_style": False}, "a rope_is_neox_style of False, which changes the forward"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"a partial_rotary_factor of 0\.5"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "a parallel_draft_step of 4"),
    ],
)
def test_wrong_configs_are_refused(change: dict[str, Any], message: str) -> None:
    config, _ = published(Made(), "vllm")
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        Eagle3Config.read({**config, **change}, "config.json")


def test_wrong_tensors_are_refused(tmp_path: Path) -> None:
    on, (config, tensors) = target(), published(Made(), "vllm")
    ids = torch.arange(37) + tensors["d2t"]
    spoiled: list[tuple[dict[str, Tensor | None], str]] = [
        ({"fc.weight": None}, r"no fc\.weight: it is not an EAGLE head"),
        ({"norm.weight": None}, r"lacks norm\.weight"),
        ({"d2t": None}, "lacks d2t"),
        ({"d2t": ids}, "must hold offsets"),
        ({"d2t": -torch.arange(37)}, "leads to a token id twice"),
        ({"layers.0.mlp.up_proj.weight": torch.ones(3, 3)}, r"of shape \[3, 3\]"),
        ({"layers.1.self_attn.q_proj.weight": torch.ones(3)}, "which its config.json does not"),
        ({"fc.weight": torch.ones(24, 48)}, r"asks for \[24, 72\]"),
    ]
    for changes, message in spoiled:
        changed = {**tensors, **changes}
        there = {key: tensor for key, tensor in changed.items() if tensor is not None}
        with pytest.raises(ForerunError, match=message):
            Eagle3Head.open(on, save(tmp_path, config, there))
    del config["eagle_aux_hidden_state_layer_ids"]
    with pytest.raises(CheckpointError, match="name the layers"):
        read_tensors(save(tmp_path, config, {**tensors, "fc.weight": torch.ones(24, 48)}))
