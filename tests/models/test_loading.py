"""Loading: every form of a good checkpoint, and one clear line for every bad one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.errors import CheckpointError, ConfigError, UnknownNameError
from forerun.models import (
    Checkpoint,
    CpuModel,
    load_model,
    model_from_tensors,
)
from forerun.models.tokenizer import read_tokenizer
from tests.helpers.backends import BACKENDS, needs_kernels, on_both
from tests.helpers.checkpoints import edit
from tests.helpers.forwards import run
from tests.helpers.tiny_models import tiny_model, tokens


def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = run(model, model.new_cache(1, 8), tokens(1, 6)).logits
    return found


@on_both(["llama", "gpt2", "gpt_neox"])
def test_sharded_checkpoints(
    name: str, backend: str, reference: Any, load: Any, tmp_path: Path
) -> None:
    reference(name).save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model = load_model(tmp_path, device="cpu", backend=backend)
    assert torch.equal(logits(model), logits(load(name, backend=backend)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gpt2_with_and_without_prefix(backend: str, load: Any, copy: Any) -> None:
    """The hub's files lack `transformer.` and hold the causal mask as a buffer."""
    directory = copy("gpt2")

    def strip(tensors: dict[str, Any]) -> None:
        for key in list(tensors):
            tensors[key.removeprefix("transformer.")] = tensors.pop(key)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
        tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)

    edit(directory, strip)
    model = load_model(directory, device="cpu", backend=backend)
    assert torch.equal(logits(model), logits(load("gpt2", backend=backend)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tied_head_may_be_stored(backend: str, load: Any, copy: Any) -> None:
    directory = copy("qwen3")
    edit(directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    model = load_model(directory, device="cpu", backend=backend)
    assert torch.equal(logits(model), logits(load("qwen3", backend=backend)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_from_tensors_equals_from_files(backend: str, load: Any) -> None:
    model = tiny_model("qwen2")
    ours = model_from_tensors(model.config, model.state_dict(), backend=backend)
    assert torch.equal(logits(ours), logits(load("qwen2", backend=backend)))


def test_names(checkpoint: Any) -> None:
    """A model is called what the user called it, wherever it speaks of itself."""
    directory = str(checkpoint("llama"))
    for name in (directory, directory + "/", Path(directory)):
        assert load_model(name, device="cpu").name == str(name)


def test_dtypes(checkpoint: Any, tmp_path: Path) -> None:
    tiny_model("llama").half().save_pretrained(tmp_path)
    assert load_model(tmp_path, device="cpu", backend="torch").dtype is torch.float32
    assert load_model(tmp_path, device="cpu", dtype="fp16").dtype is torch.float16
    tiny_model("llama").bfloat16().save_pretrained(tmp_path)
    assert load_model(tmp_path, device="cpu", backend="torch").dtype is torch.bfloat16
    with pytest.raises(UnknownNameError, match="Did you mean 'bf16'"):
        load_model(tmp_path, device="cpu", dtype="bf1")


@needs_kernels
def test_precisions_of_the_kernels(tmp_path: Path) -> None:
    """What the kernels lack runs on torch; logits are float32 in all of theirs."""
    tiny_model("llama").half().save_pretrained(tmp_path)
    for dtype, kept in {"auto": "fp32", "bf16": "bf16", "int8": "int8", "int4": "int4"}.items():
        model = load_model(tmp_path, device="cpu", dtype=dtype)
        assert isinstance(model, CpuModel)
        assert (model.precision, model.dtype) == (kept, torch.float32)
    assert not isinstance(load_model(tmp_path, device="cpu", dtype="fp64"), CpuModel)
    tiny_model("llama").bfloat16().save_pretrained(tmp_path)
    assert load_model(tmp_path, device="cpu").precision == "bf16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_devices() -> None:
    with pytest.raises(ConfigError, match="sees 0 CUDA devices"):
        load_model("anything", device="cuda")
    with pytest.raises(UnknownNameError, match="unknown device 'tpu'"):
        load_model("anything", device="tpu")
    with pytest.raises(UnknownNameError):
        load_model("anything", device="cpu:1x")


def test_eos_of_the_generation_config_comes_first(copy: Any) -> None:
    directory = copy("llama")
    assert Checkpoint.open(directory).eos_token_ids == {3}
    (directory / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert Checkpoint.open(directory).eos_token_ids == {5, 7}
    (directory / "generation_config.json").write_text("{}")
    assert Checkpoint.open(directory).eos_token_ids == {3}
    (directory / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json is not JSON"):
        _ = Checkpoint.open(directory).eos_token_ids


@pytest.mark.parametrize("value", ['"3"', "61", "-1", "true", "[3, 61]", "[[3]]", "3.0", "{}"])
def test_end_tokens_that_are_none(copy: Any, value: str) -> None:
    directory = copy("llama")
    (directory / "generation_config.json").write_text(f'{{"eos_token_id": {value}}}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id .* 0 to 60"):
        _ = Checkpoint.open(directory).eos_token_ids


def test_a_misspelt_packaged_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match=r"Did you mean 'smollm2'\?"):
        Checkpoint.open("smolm2")


def test_paths_that_are_none(tmp_path: Path) -> None:
    for name in ("/no/such/dir", "./none", "a/b/c"):
        with pytest.raises(CheckpointError, match="there is no directory"):
            Checkpoint.open(name)
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match="is a file; give a GGUF file, or the directory"):
        Checkpoint.open(tmp_path / "model.bin")


def test_tokenizers(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"yes": 0, "no": 1}, unk_token="no"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    assert read_tokenizer(tmp_path, None).encode("yes") == [0]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="has no tokenizer that transformers can read"):
        read_tokenizer(tmp_path, None)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_a_missing_tokenizer(checkpoint: Any, name: str) -> None:
    """Of some types transformers would make an empty one."""
    with pytest.raises(CheckpointError, match=r"has no tokenizer \(tokenizer\.json, "):
        _ = Checkpoint.open(checkpoint(name)).tokenizer


def test_a_directory_has_no_revision(checkpoint: Any) -> None:
    with pytest.raises(ConfigError, match="revision 'main' is for a model on the hub"):
        Checkpoint.open(checkpoint("llama"), revision="main")


def hub_errors() -> dict[str, tuple[Exception, str]]:
    import httpx2
    from huggingface_hub import errors

    response = httpx2.Response(404, request=httpx2.Request("GET", "https://huggingface.co"))
    return {
        "gated": (errors.GatedRepoError("no", response=response), "is gated: accept its licence"),
        "not found": (errors.RepositoryNotFoundError("no", response=response), "check the name"),
        "revision": (
            errors.RevisionNotFoundError("no", response=response),
            "has no revision 'v9'",
        ),
        "offline": (errors.LocalEntryNotFoundError("no"), "HF_HUB_OFFLINE"),
        "bad id": (errors.HFValidationError("no"), "check the name"),
        "server": (errors.HfHubHTTPError("504 oh\nno", response=response), "downloaded: 504 oh;"),
        "disk": (OSError("disk full"), "could not be downloaded: disk full"),
    }


@pytest.mark.parametrize("case", list(hub_errors()))
def test_hub_errors_say_what_to_do(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, message = hub_errors()[case]

    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model("someone/model", device="cpu", revision="v9")
    assert "\n" not in str(caught.value)


def test_hub_downloads_no_pickles(
    checkpoint: Any, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(checkpoint("llama"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    model = load_model("someone/model", device="cpu", revision="main", backend="torch")
    assert torch.equal(logits(model), logits(load("llama")))
    assert model.name == asked["name"] == "someone/model"
    assert asked["revision"] == "main"
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any("bin" in pattern for pattern in asked["allow_patterns"])
