"""A head's directory: every published form is read, and what is wrong with one is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.engine.config import SpeculativeConfig
from forerun.engine.resolve import choose
from forerun.errors import CheckpointError, ConfigError, ForerunError, UnsupportedModelError
from forerun.heads import HEADS, kind_at, kind_of
from forerun.heads.files import HeadFiles, open_head, write_head

CONFIG = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4}
TENSORS = {"fc.weight": torch.arange(8.0).view(2, 4), "d2t": torch.arange(3)}


def save(folder: Path, form: str, tensors: dict[str, Tensor] = TENSORS) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    parts = {
        f"part-{number}.safetensors": {key: value}
        for number, (key, value) in enumerate(tensors.items())
    }
    weight_map = {key: name for name, part in parts.items() for key in part}
    if form == "safetensors":
        save_file(tensors, folder / "model.safetensors")
    elif form == "pickled":
        torch.save(tensors, folder / "pytorch_model.bin")
    elif form == "medusa":
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        for name, part in parts.items():
            save_file(part, folder / name)
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("form", ["safetensors", "sharded", "pickled", "medusa"])
def test_every_published_form_is_read(tmp_path: Path, form: str) -> None:
    head = open_head(save(tmp_path, form), "eagle3")
    assert head.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(head.tensors[key], value) for key, value in TENSORS.items())


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_head(tmp_path / "new", CONFIG, TENSORS, {"forerun.json": '{"format": 1}'})
    head = HeadFiles.open(str(tmp_path / "new"))
    assert (head.config, head.own, head.kind) == (CONFIG, {"format": 1}, "eagle3")
    assert torch.equal(head.tensors["fc.weight"], TENSORS["fc.weight"])


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_head(tmp_path, CONFIG, TENSORS)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("forerun.heads.files.save_file", full)
    with pytest.raises(CheckpointError, match="no space left"):
        write_head(tmp_path, {**CONFIG, "hidden_size": 5}, {})
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    head = HeadFiles.open(tmp_path)
    assert (head.config, len(head.tensors)) == (CONFIG, 2)


def test_broken_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no directory"):
        open_head(tmp_path / "absent", "eagle3")
    save(tmp_path, "safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="corrupt or cut off"):
        _ = HeadFiles.open(tmp_path).tensors
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        _ = HeadFiles.open(tmp_path).tensors
    torch.save({"fc": Path("code")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds more than tensors"):
        _ = HeadFiles.open(tmp_path).tensors
    spoiled = save(tmp_path, "safetensors", {"fc.weight": torch.tensor([1.0, torch.nan])})
    with pytest.raises(CheckpointError, match=r"fc\.weight with numbers that are NaN"):
        _ = HeadFiles.open(spoiled).tensors
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_head(tmp_path, "eagle3")


def test_tensors_are_matched_with_a_layout(tmp_path: Path) -> None:
    head = HeadFiles.open(save(tmp_path, "safetensors"))
    assert list(head.pick({"fc.weight": (2, 4)}, unused=["d2t"])) == ["fc.weight"]
    assert list(head.pick({"up": (2, 4)}, {"d2t": (3,)}, renamed={"fc.weight": "up"})) == [
        "up",
        "d2t",
    ]
    with pytest.raises(CheckpointError, match="lacks norm"):
        head.pick({"fc.weight": (2, 4), "norm": (4,)})
    with pytest.raises(CheckpointError, match=r"of shape \[2, 4\]"):
        head.pick({"fc.weight": (4, 2)})
    with pytest.raises(CheckpointError, match="holds d2t, which"):
        head.pick({"fc.weight": (2, 4)})


def test_heads_are_recognized_by_their_configs(tmp_path: Path) -> None:
    for kind, names in {
        "eagle3": ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"],
        "medusa": ["MedusaModel"],
    }.items():
        assert [kind_of({"architectures": [name]}) for name in names] == [kind] * len(names)
        assert kind in HEADS
    assert kind_of({"speculators_model_type": "eagle3", "architectures": ["Whatever"]}) == "eagle3"
    assert kind_of({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}) is None
    assert kind_of({"architectures": 3}) is None
    assert kind_at(tmp_path) is None
    (tmp_path / "config.json").write_text("[1")
    assert kind_at(tmp_path) is None


def test_a_head_of_another_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError, match="'eagle3'; use that method instead of 'medusa'"
    ):
        open_head(save(tmp_path, "safetensors"), "medusa")


def test_a_method_without_a_draft_model_takes_no_head(tmp_path: Path) -> None:
    head = str(save(tmp_path, "safetensors"))
    with pytest.raises(ConfigError, match="takes no draft model"):
        choose(SpeculativeConfig(method="ngram", model=head), "zoo")


def test_heads_of_the_hub_are_not_guessed() -> None:
    """Nothing is downloaded to find out what a name stands for."""
    assert kind_at("someone/LLaMA-EAGLE3") is None
    with pytest.raises(ForerunError):
        HeadFiles.open("no such\nname")


@pytest.mark.parametrize("table", [3, [], [[]], [[0.5], [0.1, 0.2]], [[1.5]], [["a"]], [[0.5], 3]])
def test_acceptance_is_a_table_of_probabilities(tmp_path: Path, table: Any) -> None:
    write_head(
        tmp_path, CONFIG, TENSORS, {"forerun.json": json.dumps({"acceptance_by_rank": table})}
    )
    with pytest.raises(CheckpointError, match="acceptance_by_rank of"):
        _ = HeadFiles.open(tmp_path).acceptance_by_rank
    write_head(
        tmp_path, CONFIG, TENSORS, {"forerun.json": '{"acceptance_by_rank": [[0.5, 0], [0.2, 0]]}'}
    )
    assert HeadFiles.open(tmp_path).acceptance_by_rank == ((0.5, 0.0), (0.2, 0.0))
    write_head(tmp_path, CONFIG, TENSORS, {"forerun.json": "{}"})
    assert HeadFiles.open(tmp_path).acceptance_by_rank is None
