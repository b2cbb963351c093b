"""One clear line for every checkpoint that is broken, on either backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.errors import CheckpointError, UnsupportedModelError
from forerun.models import Checkpoint, load_model
from tests.helpers.backends import BACKENDS
from tests.helpers.checkpoints import edit


def drop(key: str) -> Callable[[Path], None]:
    return lambda directory: edit(directory, lambda tensors: tensors.pop(key))


def reshape(directory: Path) -> None:
    edit(directory, lambda t: t.update({"model.norm.weight": torch.ones(7)}))


def add(directory: Path) -> None:
    edit(directory, lambda t: t.update({"model.layers.9.norm.weight": torch.ones(7)}))


def cut(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def scribble(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"not a tensor at all")


def pickle_only(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def rewrite(name: str, text: str) -> Callable[[Path], None]:
    def breaking(directory: Path) -> None:
        (directory / name).write_text(text)

    return breaking


def index(content: Any) -> Callable[[Path], None]:
    return rewrite("model.safetensors.index.json", json.dumps(content))


def config_text(text: str) -> Callable[[Path], None]:
    return rewrite("config.json", text)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing tensor": (
        drop("model.layers.1.self_attn.k_proj.weight"),
        r"lacks model\.layers\.1\.self_attn\.k_proj\.weight of shape \[12, 24\]",
    ),
    "missing head": (drop("lm_head.weight"), r"lacks lm_head\.weight of shape \[61, 24\]"),
    "wrong shape": (reshape, r"model\.norm\.weight has shape \[7\].* \[24\]"),
    "leftover": (add, r"holds model\.layers\.9\.norm\.weight, which its config does not describe"),
    "cut off": (cut, "model.safetensors is corrupt or cut off"),
    "no safetensors": (scribble, "model.safetensors is corrupt or cut off"),
    "pickled": (pickle_only, r"only pickled weights \(pytorch_model\.bin\).*save_pretrained"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "holds no weights"),
    "missing shard": (
        index({"weight_map": {"a": "model-1.safetensors"}}),
        "model-1.safetensors is missing in",
    ),
    "key not in shard": (
        index({"weight_map": {"a": "model.safetensors"}}),
        "lacks a, which model.safetensors.in",
    ),
    "no weight map": (index({}), "has no weight_map"),
    "no config": (lambda d: (d / "config.json").unlink(), "has no config.json"),
    "bad JSON": (config_text("{"), r"config\.json is not JSON"),
    "no object": (config_text("[]"), "holds no JSON object"),
    "no type": (config_text("{}"), "names no model_type"),
    "wrong config": (
        config_text('{"model_type": "llama", "hidden_size": 7, "num_attention_heads": 2}'),
        "config.json is wrong",
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", BROKEN)
def test_broken_checkpoints(case: str, backend: str, copy: Any) -> None:
    breaking, message = BROKEN[case]
    directory = copy("llama")
    breaking(directory)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(directory, device="cpu", backend=backend)
    assert "\n" not in str(caught.value)


def test_broken_files_of_the_adapter(copy: Any) -> None:
    directory = copy("gpt_neox")
    edit(directory, lambda tensors: tensors.pop("gpt_neox.layers.1.attention.dense.weight"))
    with pytest.raises(CheckpointError, match=r"lacks gpt_neox\.layers\.1\.attention\.dense"):
        load_model(directory, device="cpu")
    cut(directory)
    with pytest.raises(CheckpointError, match="transformers cannot load"):
        load_model(directory, device="cpu")


def test_unknown_and_quantized_models(copy: Any) -> None:
    directory = copy("llama")
    values = json.loads((directory / "config.json").read_text())
    config_text(json.dumps(values | {"quantization_config": {"quant_method": "gptq"}}))(directory)
    with pytest.raises(UnsupportedModelError, match=r"quantized \(gptq\)"):
        load_model(directory, device="cpu")
    config_text('{"model_type": "frobnicator"}')(directory)
    with pytest.raises(UnsupportedModelError, match="does not know the model type 'frobnicator'"):
        Checkpoint.open(directory)
