"""`forerun check` and `forerun export`: exit codes, streams, JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers import published_heads as published
from tests.helpers.command_line import Cli
from tests.helpers.refusals import refused


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(3)
    directory = tmp_path_factory.mktemp("models") / "tiny"
    config = LlamaConfig(
        vocab_size=published.VOCAB,
        hidden_size=published.HIDDEN,
        intermediate_size=published.INNER,
        num_hidden_layers=published.LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_parameters=published.ROPE,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return str(directory)


def saved(directory: Path, record: object = None, **changes: object) -> str:
    """A head's directory."""
    head = published.eagle3_head(**changes)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(head.config), encoding="utf-8")
    save_file(dict(head.tensors), directory / "model.safetensors")
    if record is not None:
        (directory / "forerun.json").write_text(json.dumps(record), encoding="utf-8")
    return str(directory)


def test_a_clean_head(cli: Cli, target: str, tmp_path: Path) -> None:
    result = cli.run("check", saved(tmp_path / "head", {"target": target}))
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    assert all("drafts as it was trained (100% the same drafts" in line for line in lines[1:])


def test_a_head_that_one_engine_misreads(cli: Cli, target: str, tmp_path: Path) -> None:
    head = saved(tmp_path / "head", norm_before_residual=True)
    result = cli.run("check", head, "--model", target)
    assert result.exit_code == 1
    assert "because SGLang ignores norm_before_residual=true" in result.stdout
    assert "wrong  sglang" in result.stdout
    assert cli.run("check", head, "--model", target, "--engines", "vllm,llama.cpp").exit_code == 0


def test_the_object(cli: Cli, target: str, tmp_path: Path) -> None:
    head = saved(tmp_path / "head", norm_output=True)
    result = cli.run("check", head, "--model", target, "--engines", "llama.cpp", "--json")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert content["schema_version"] == 1
    assert (content["kind"], content["clean"]) == ("eagle3", False)
    assert content["engines"] == {"llama.cpp": "b11434"}
    (finding,) = content["findings"]
    assert (finding["severity"], finding["engine"]) == ("wrong", "llama.cpp")
    (replay,) = content["replays"]
    assert replay["agreement"] < 1


def test_without_the_replay_no_weights_of_the_target_are_read(
    cli: Cli, target: str, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    config = (Path(target) / "config.json").read_text(encoding="utf-8")
    (bare / "config.json").write_text(config, encoding="utf-8")
    result = cli.run("check", saved(tmp_path / "head"), "--model", str(bare), "--no-replay")
    assert result.exit_code == 0
    assert "nothing found" in result.stdout


def test_a_head_for_another_target(cli: Cli, tmp_path: Path) -> None:
    result = cli.run("check", saved(tmp_path / "head"), "--model", cli.target)
    assert result.exit_code == 1
    assert "error  all        the head is for a target with hidden_size 24" in result.stdout
    assert "not run: the head is for a target" in result.stderr


def test_wrong_use(cli: Cli, target: str, tmp_path: Path) -> None:
    head = saved(tmp_path / "head")
    refused(cli.run("check"), "HEAD", "For example: forerun check")
    refused(cli.run("check", head), "--model")
    refused(cli.run("check", head, "--model", target, "--engines", "vlm"), "'vlm'", "'vllm'")
    refused(cli.run("check", str(tmp_path / "none"), "--model", target), "none")
    refused(cli.run("check", target, "--model", target), "it checks EAGLE-3")
    refused(cli.run("export", head, "--model", target), "--output")


def test_an_export_and_its_check(cli: Cli, target: str, tmp_path: Path) -> None:
    head, out = saved(tmp_path / "head"), str(tmp_path / "out")
    result = cli.run("export", head, "--model", target, "--output", out)
    assert result.exit_code == 0
    assert "of weights" in result.stdout
    assert cli.run("check", out, "--model", target).exit_code == 0
    again = cli.run("export", head, "--model", target, "--output", out)
    refused(again, "exists already")


def test_an_export_that_would_draft_otherwise(cli: Cli, target: str, tmp_path: Path) -> None:
    head, out = saved(tmp_path / "head", norm_output=True), str(tmp_path / "out")
    command = ("export", head, "--model", target, "--output", out)
    refused(cli.run(*command), "faithfully", "llama.cpp ignores norm_output=true", "--engines")
    assert not Path(out).exists()
    assert cli.run(*command, "--engines", "vllm,sglang", "--json").exit_code == 0
    assert not (Path(out) / "README.md").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
        ({"rope_parameters": ["linear"]}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 50.0}}, "rope"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"rope_theta": "much"}, "rope_theta"),
        ({"hidden_act": 5}, "hidden_act"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_config_that_is_nonsense(
    cli: Cli, target: str, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    result = cli.run("check", saved(tmp_path / "head", **changes), "--model", target)
    assert result.exit_code == 1
    assert words in result.stdout
