"""A checkpoint is one value: where it lies, what it says of itself, and the model in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from forerun.errors import CheckpointError, ConfigError, UnsupportedModelError
from forerun.models import Checkpoint, Placement, load_model, model_from_tensors
from tests.helpers.backends import BACKENDS
from tests.helpers.checkpoints import edit
from tests.helpers.forwards import run
from tests.helpers.tiny_models import close, tiny_model, tokens


def test_a_directory_under_any_name_is_the_same(checkpoint: Any, tmp_path: Path) -> None:
    directory = checkpoint("llama")
    link = tmp_path / "link"
    link.symlink_to(directory)
    opened = Checkpoint.open(directory)
    assert opened.is_same(Checkpoint.open(f"{directory}/"))
    assert opened.is_same(Checkpoint.open(str(link)))
    assert not opened.is_same(Checkpoint.open(checkpoint("qwen3")))


def test_what_transformers_runs_has_no_architecture_of_ours(checkpoint: Any) -> None:
    opened = Checkpoint.open(checkpoint("gpt_neox"))
    assert not opened.native
    assert opened.summary.num_layers == 3
    with pytest.raises(UnsupportedModelError, match=r"\(gpt_neox\) runs on transformers only"):
        _ = opened.architecture


def test_the_stored_precision_is_that_of_the_weights_where_the_config_has_none(copy: Any) -> None:
    directory = copy("llama")
    tiny_model("llama").bfloat16().save_pretrained(directory)
    path = directory / "config.json"
    values = json.loads(path.read_text())
    del values["dtype"]
    path.write_text(json.dumps(values))
    assert Checkpoint.open(directory).run_config(Placement(device="cpu")).precision == "bf16"
    (directory / "model.safetensors").unlink()
    assert Checkpoint.open(directory).run_config(Placement(device="cpu")).precision == "fp32"


@pytest.mark.zoo
def test_the_zoo_has_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_model("zoo-draft", device="cpu").name == "zoo-draft"
    # A path is never one of its names.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError):
        Checkpoint.open(Path("./zoo"))
    with pytest.raises(ConfigError, match="revision 'v1' is for a model on the hub"):
        Checkpoint.open("zoo", "v1")


PATHS = [
    "~nobody-of-this-name/model",
    "x" * 300,
    "a/" + "x" * 5000,
    "null\0byte",
    "line\nbreak",
    "\udcff",
    "",
    *(None, 3, b"zoo", ["zoo"], True, 1.5, object()),
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ascii(path)[:20])
def test_names_that_cannot_be_found(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        Checkpoint.open(path)
    assert "\n" not in str(caught.value)


def own_head(directory: Path) -> None:
    """Give a model whose config says that its head is the embedding another head."""
    table = torch.randn(61, 24, generator=torch.Generator().manual_seed(3))
    edit(directory, lambda tensors: tensors.update({"lm_head.weight": table}))


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "llama-rope3"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_head_that_differs_from_the_embedding_is_used(name: str, backend: str, copy: Any) -> None:
    """As transformers does, whatever the config says."""
    directory, ids = copy(name), tokens(1, 6)
    own_head(directory)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        wanted = reference(input_ids=ids).logits
    model = load_model(directory, dtype="fp32", device="cpu", backend=backend)
    close(run(model, model.new_cache(1, 8), ids).logits, wanted, 1e-4)
    opened = Checkpoint.open(directory)
    assert opened.summary.parameters == sum(p.numel() for p in reference.parameters())
    assert "another head" in " ".join(opened.notes)


def test_a_head_that_equals_the_embedding_is_not_read_twice(copy: Any) -> None:
    directory = copy("qwen3")
    edit(directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    opened = Checkpoint.open(directory)
    assert opened.architecture.tied
    assert opened.notes == ()
    assert opened.summary.parameters == sum(p.numel() for p in tiny_model("qwen3").parameters())


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_in_memory_may_hold_a_head_of_their_own(backend: str) -> None:
    reference, ids = tiny_model("qwen3"), tokens(1, 6)
    reference.config.tie_word_embeddings = False
    reference.lm_head.weight = torch.nn.Parameter(torch.randn(61, 24))
    with torch.no_grad():
        wanted = reference(input_ids=ids).logits
    reference.config.tie_word_embeddings = True
    model = model_from_tensors(reference.config, reference.state_dict(), backend=backend)
    close(run(model, model.new_cache(1, 8), ids).logits, wanted, 1e-4)


def test_info_says_which_head_is_used(copy: Any) -> None:
    from click.testing import CliRunner

    from forerun.cli.main import application

    directory = copy("qwen3")
    own_head(directory)
    result = CliRunner().invoke(application, ["info", str(directory)])
    assert result.exit_code == 0, result.output
    assert "the weights hold another head, which is used" in " ".join(result.stdout.split())
    assert os.fspath(directory) in "".join(result.stdout.split())


@pytest.mark.parametrize("where", ["elsewhere/model.safetensors", "/etc/passwd", "..", "", 3])
def test_an_index_names_files_beside_it(where: Any, copy: Any) -> None:
    directory = copy("llama")
    index = {"weight_map": {"lm_head.weight": where}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="no weight_map of files beside it"):
        load_model(directory, device="cpu")


def test_weights_of_the_hub_are_those_of_the_config(
    checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch may move between the two downloads: the second names the first one's commit."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "snapshots" / commit
    snapshot.parent.mkdir()
    snapshot.symlink_to(checkpoint("llama"))
    asked: list[tuple[str | None, bool]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str], **_: Any) -> str:
        asked.append((revision, "*.safetensors" in allow_patterns))
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    opened = Checkpoint.open("someone/model", "main")
    assert opened.summary.num_layers == 3
    assert asked == [("main", False)]
    opened.load(opened.run_config(Placement(device="cpu")))
    assert asked == [("main", False), (commit, True)]
