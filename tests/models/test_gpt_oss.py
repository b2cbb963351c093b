"""gpt-oss: experts in MXFP4, as they are published, are read exactly, and wrong stacks are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize
from safetensors.torch import load_file, save_file

from forerun.errors import CheckpointError, UnsupportedModelError
from forerun.models import Checkpoint, load_model
from forerun.models.gguf.blocks import SuperBlocks, codes_of
from tests.helpers.backends import BACKENDS
from tests.helpers.forwards import run
from tests.helpers.tiny_models import random_model, tiny_config, tokens

CONFIG = {"quantization_config": {"quant_method": "mxfp4"}}


def written(place: Path, config: dict[str, Any] = CONFIG) -> Path:
    """A checkpoint with experts in MXFP4."""
    made = tiny_config("gpt_oss")
    made.hidden_size, made.intermediate_size = 64, 32
    random_model(made).save_pretrained(place)
    tensors, generator = load_file(place / "model.safetensors"), torch.Generator().manual_seed(1)
    for name in ("gate_up_proj", "down_proj"):
        for layer in range(made.num_hidden_layers):
            key = f"model.layers.{layer}.mlp.experts.{name}"
            experts, inputs, outputs = tensors.pop(key).shape
            size = (experts, outputs, inputs // 32)
            tensors[f"{key}_blocks"] = torch.randint(
                256, (*size, 16), generator=generator, dtype=torch.uint8
            )
            tensors[f"{key}_scales"] = torch.randint(
                118, 126, size, generator=generator, dtype=torch.uint8
            )
    save_file(tensors, place / "model.safetensors")
    file = place / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | config), "utf-8")
    return place


@pytest.mark.parametrize("backend", BACKENDS)
def test_mxfp4_is_what_transformers_makes_of_it(backend: str, tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    place = written(tmp_path)
    tensors = load_file(place / "model.safetensors")
    for key in [key for key in tensors if key.endswith("_blocks")]:
        name = key.removesuffix("_blocks")
        blocks, scales = tensors.pop(key), tensors.pop(f"{name}_scales")
        tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    model = random_model(Checkpoint.open(place).config)
    model.load_state_dict(tensors)
    ids = tokens(1, 12)
    with torch.no_grad():
        expected = model(ids).logits
    ours = load_model(place, dtype="fp32", device="cpu", backend=backend)
    logits = run(ours, ours.new_cache(1, 16), ids.tolist()).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * expected.std().item())


def test_other_quantized_checkpoints_stay_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"quantized \(gptq\)"):
        load_model(written(tmp_path, {"quantization_config": {"quant_method": "gptq"}}))


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("gate_up_proj_blocks", lambda tensor: tensor[:, :-2]),
        ("gate_up_proj_blocks", lambda tensor: tensor[:3]),
        ("gate_up_proj_blocks", lambda tensor: tensor[0, 0, 0]),
        ("gate_up_proj_bias", lambda tensor: tensor[:, 0]),
        ("down_proj_scales", lambda tensor: tensor[:, :1]),
        ("down_proj_scales", lambda tensor: tensor[:1]),
        ("down_proj_blocks", lambda tensor: tensor.float()),
    ],
)
def test_wrong_stacks_are_refused(key: str, change: Any, tmp_path: Path) -> None:
    place = written(tmp_path)
    tensors = load_file(place / "model.safetensors")
    name = f"model.layers.1.mlp.experts.{key}"
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, place / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"experts") as refusal:
        load_model(place, device="cpu", backend="torch")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("least", "exact"), [(120, True), (104, True), (100, False)])
def test_blocks_of_a_gguf_file_are_held_exactly_where_fp16_has_their_scales(
    least: int, exact: bool
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (8, 4 * 17), dtype=np.uint8)
    rows[:, ::17] = rng.integers(least, least + 8, (8, 4))
    held = codes_of(rows, Kind.MXFP4)
    assert not isinstance(held, SuperBlocks)
    assert held.precision == "int8"
    assert np.array_equal(held.values(), dequantize(rows, Kind.MXFP4)) == exact
