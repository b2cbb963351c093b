"""Reading Medusa heads: every dialect of their configs, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.errors import CheckpointError, ForerunError, UnsupportedModelError
from forerun.heads.files import HeadFiles, write_head
from forerun.heads.medusa import MedusaConfig, MedusaHead, read_tensors
from forerun.testing import ToyModel
from tests.helpers.layered import LayeredToyModel
from tests.helpers.medusa_heads import Made, published, random_tensors

FEW = Made(draft_vocab=37)


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> HeadFiles:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {key: tensor.clone() for key, tensor in tensors.items()}, folder / "model.safetensors"
    )
    return HeadFiles.open(folder)


@pytest.mark.parametrize("layout", ["medusa", "tensorrt", "vllm", "vllm-cut", "speculators"])
def test_every_dialect_says_the_same(tmp_path: Path, layout: str) -> None:
    made = Made(layers=2)
    config, tensors = read_tensors(save(tmp_path, *published(made, layout)), made.vocab)
    assert config == MedusaConfig(24, 61, 4, 2, 61, bias=True, own_outputs=True)
    assert torch.equal(tensors["blocks.3.layers.1.weight"], made.blocks[3][1][0])
    assert torch.equal(tensors["lm_heads.2.weight"], made.outputs[2])


def test_a_file_that_says_little_is_read_by_its_tensors(tmp_path: Path) -> None:
    made = Made(bias=False, output="target")
    files = save(tmp_path, *published(made, "medusa"))
    assert read_tensors(files, 80)[0] == MedusaConfig(24, 80, 4, 1, 80, bias=False)


@pytest.mark.parametrize("layout", ["vllm", "vllm-cut", "speculators"])
def test_few_tokens_come_in_the_targets_order(tmp_path: Path, layout: str) -> None:
    _, tensors = read_tensors(save(tmp_path, *published(FEW, layout)), FEW.vocab)
    ids = FEW.ids.sort().values
    assert torch.equal(tensors["d2t"] + torch.arange(37), ids)
    assert torch.equal(tensors["lm_heads.1.weight"], FEW.outputs[1][ids])


def test_new_heads_say_what_the_target_says_of_the_next_token() -> None:
    """And random ones something else."""
    target = LayeredToyModel(11)
    config = MedusaConfig(11, 11, 3, 2, 11)
    states = torch.randn(5, 11, dtype=target.dtype, generator=torch.Generator().manual_seed(0))
    head = MedusaHead(target, config, random_tensors(config), "new")
    assert torch.equal(head.run(states, 2), states[:, None].expand(-1, 2, -1))
    other = MedusaHead(target, config, random_tensors(config, spread=1.0), "new")
    assert not torch.allclose(other.run(states, 1)[:, 0], states, atol=0.1)
    own = replace(config, own_outputs=True)
    shuffled = MedusaHead(target, own, random_tensors(own), "new").run(states, 1)[:, 0]
    assert not torch.allclose(shuffled, states, atol=0.1)


@pytest.mark.parametrize(
    "config", [MedusaConfig(8, 9, 3, 2, 9), MedusaConfig(8, 9, 2, 1, 9, False, True)]
)
def test_what_is_written_is_read_again(tmp_path: Path, config: MedusaConfig) -> None:
    tensors = random_tensors(config, spread=1.0)
    write_head(tmp_path, config.published(), tensors)
    files = HeadFiles.open(tmp_path)
    assert files.kind == "medusa"
    read, again = read_tensors(files, 9)
    assert read == config
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": None}, "medusa_num_heads is None"),
        ({"num_heads": 0}, "num_heads is 0; it must be a whole number from 1 to 32"),
        ({"num_hidden_layers": "1"}, "num_hidden_layers is '1'"),
        ({"truncated_vocab_size": 62}, "truncated_vocab_size is 62"),
        ({"logit_scale": 0.5}, r"logit_scale of 0\.5"),
    ],
)
def test_wrong_configs_are_refused(change: dict[str, Any], message: str) -> None:
    config, tensors = published(Made(), "vllm")
    shapes = {key: tensor.shape for key, tensor in tensors.items()}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        MedusaConfig.read({**config, **change}, shapes, 61, "config.json")


def test_wrong_tensors_are_refused(tmp_path: Path) -> None:
    config, tensors = published(FEW, "vllm")
    spoiled: list[tuple[dict[str, Tensor | None], str]] = [
        ({"blocks.1.layers.0.weight": None}, r"lacks blocks\.1\.layers\.0\.weight"),
        ({"blocks.1.layers.0.bias": None}, r"lacks blocks\.1\.layers\.0\.bias"),
        ({"lm_heads.3.weight": None}, r"lacks lm_heads\.3\.weight"),
        ({"blocks.4.layers.0.weight": torch.ones(24, 24)}, "which its config.json does not"),
        ({"blocks.0.layers.0.bias": torch.ones(3)}, r"of shape \[3\]"),
        ({"token_map": None}, "neither token_map nor d2t"),
        ({"token_map": torch.arange(37) + 30}, "outside the target's 61"),
        ({"token_map": torch.arange(37) // 2}, "a token id twice"),
    ]
    for changes, message in spoiled:
        changed = {**tensors, **changes}
        there = {key: tensor for key, tensor in changed.items() if tensor is not None}
        with pytest.raises(ForerunError, match=message):
            read_tensors(save(tmp_path, config, there), 61)


def test_heads_of_another_target_are_refused(tmp_path: Path) -> None:
    files = save(tmp_path, *published(Made(), "medusa"))
    with pytest.raises(ForerunError, match="hidden size of 24, and toy-61 has 1"):
        MedusaHead.open(ToyModel(61), files)
    with pytest.raises(ForerunError, match="vocabulary of 61, and toy-24 has 24"):
        MedusaHead.open(LayeredToyModel(24), files)
