"""`forerun info`: from config.json alone, or the header of a GGUF file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors import safe_open

from forerun import _native
from tests.helpers import forked
from tests.helpers.backends import needs_kernels
from tests.helpers.command_line import Cli
from tests.helpers.gguf_files import write_model
from tests.helpers.refusals import refused

KEYS = {
    "schema_version",
    "versions",
    "hardware",
    "settings",
    "model",
    "family",
    "backend",
    "kernels",
    "kernels_missing",
    "parameters",
    "weight_bytes",
    "max_context",
    "vocab_size",
    "num_layers",
    "hidden_size",
    "notes",
    "dtype",
    "tensors",
    "cache_bytes_per_token",
    "exactness",
    "known_draft",
    "default_method",
    "methods",
    "memory",
}


@pytest.fixture
def bare(cli: Cli, tmp_path: Path) -> str:
    """A directory with a config and nothing else."""
    shutil.copy(Path(cli.target) / "config.json", tmp_path)
    return str(tmp_path)


def test_object(cli: Cli, bare: str) -> None:
    content = json.loads(cli.run("info", bare, "--json", "--dtype", "fp32").stdout)
    assert set(content) == KEYS
    with safe_open(Path(cli.target) / "model.safetensors", "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    parameters = sum(rows * (columns[0] if columns else 1) for rows, *columns in shapes)
    assert content["parameters"] == parameters
    assert content["weight_bytes"]["fp32"] == 4 * parameters
    # Keys and values of one head of 8 numbers in two layers, four bytes each.
    assert content["cache_bytes_per_token"] == 2 * 8 * 2 * 4
    assert (content["family"], content["num_layers"]) == ("qwen3", 2)
    assert (content["known_draft"], content["default_method"]) == (None, "suffix")
    memory = content["memory"]
    assert memory["needed"] == 4 * parameters + memory["context"] * 128
    assert memory["fits"] is (memory["needed"] <= memory["available"])


def test_text(cli: Cli, bare: str) -> None:
    result = cli.run("info", bare, "--backend", "torch")
    assert result.exit_code == 0
    for word in ("qwen3", "parameters", "fp32", "16384", "ngram", "distributional", "fits"):
        assert word in result.stdout


def test_the_model_as_an_option(cli: Cli, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*words: str) -> str:
        # Free memory changes from run to run.
        return cli.run("info", *words).stdout.partition("\nmemory")[0]

    expected = said(bare)
    assert "layers" in expected
    assert said("-m", bare) == expected
    refused(cli.run("info", "-m", bare, "zoo"), "the argument MODEL and --model exclude each other")
    monkeypatch.setenv("FORERUN_MODEL", "zoo")
    assert said(bare) == expected


def test_torch_can_be_asked_for(cli: Cli, bare: str) -> None:
    options = ("--backend", "torch", "--device", "cpu")
    content = json.loads(cli.run("info", bare, *options, "--json").stdout)
    assert (content["backend"], content["exactness"]) == ("torch", "distributional")
    assert "decoders on torch" in cli.run("info", bare, *options).stdout
    refused(cli.run("info", bare, *options, "--dtype", "int8"), "int8", "the backend is torch")
    refused(cli.run("info", bare, "--backend", "troch"), "'torch'")


@needs_kernels
def test_kernels_are_shown(cli: Cli, bare: str) -> None:
    options = ("--device", "cpu")
    content = json.loads(cli.run("info", bare, *options, "--dtype", "int8", "--json").stdout)
    assert (content["backend"], content["exactness"]) == ("kernels", "bitwise")
    assert content["kernels"] == _native.kernels.level()
    assert content["kernels_missing"] is None
    assert content["dtype"] == "int8"
    assert content["weight_bytes"]["int4"] < content["weight_bytes"]["int8"]
    assert f"CPU kernels ({content['kernels']})" in cli.run("info", bare, *options).stdout


def test_missing_kernels_are_shown(cli: Cli, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "AVAILABLE", False)
    monkeypatch.setattr(_native, "REASON", "ImportError: no compiler")
    options = ("--device", "cpu")
    content = json.loads(cli.run("info", bare, *options, "--json").stdout)
    assert (content["backend"], content["kernels"]) == ("torch", None)
    assert content["kernels_missing"] == "ImportError: no compiler"
    text = " ".join(cli.run("info", bare, *options).stdout.split())
    assert "not available (ImportError: no compiler)" in text
    refused(cli.run("info", bare, *options, "--dtype", "int8"), "int8", "no compiler")


def test_memory_that_is_not_there(cli: Cli, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun import models

    monkeypatch.setattr(models, "available_bytes", lambda device: 1000)
    assert "does not fit" in cli.run("info", bare).stdout
    assert json.loads(cli.run("info", bare, "--json").stdout)["memory"]["fits"] is False


def test_known_draft_counts(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.engine import resolve

    command = ("info", cli.target, "--backend", "torch", "--json")
    alone = json.loads(cli.run(*command).stdout)
    monkeypatch.setitem(resolve.KNOWN_DRAFTS, cli.target, cli.draft)
    content = json.loads(cli.run(*command).stdout)
    assert content["known_draft"] == cli.draft
    assert content["memory"]["needed"] == 2 * alone["memory"]["needed"]


@needs_kernels
def test_a_draft_on_the_kernels_is_quantized(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.engine import resolve

    command = ("info", cli.target, "--device", "cpu", "--json")
    alone = json.loads(cli.run(*command).stdout)
    monkeypatch.setitem(resolve.KNOWN_DRAFTS, cli.target, cli.draft)
    more = json.loads(cli.run(*command).stdout)["memory"]["needed"] - alone["memory"]["needed"]
    # Half of the cache in bf16, a quarter of the weights in int8 and their scales.
    assert more == alone["weight_bytes"]["int8"] + alone["memory"]["context"] * 64


def test_wrong_use(cli: Cli, bare: str, tmp_path: Path) -> None:
    refused(cli.run("info", str(tmp_path / "none")), "directory")
    refused(cli.run("info", bare, "--dtype", "fp31"), "'fp32'")
    refused(cli.run("info", bare, "--jsn"), "'--json'")
    refused(cli.run("info", ""), "MODEL", "empty")
    refused(cli.run("info", bare, "--max-context", "16385"), "--max-context", "16384")
    refused(cli.run("info", bare, "--revision", "main"), "revision 'main'", "directory")


def test_a_refusal_names_the_model_as_the_user_did(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    for command in (
        ("info", str(tmp_path)),
        ("generate", "--prompt", "a", "--model", str(tmp_path)),
    ):
        refused(cli.run(*command), f"{tmp_path} (mamba) is recurrent")


def test_a_config_that_contradicts_itself_is_one_line(cli: Cli, tmp_path: Path) -> None:
    """In a process of its own, as transformers writes to the stream of errors that it first saw."""
    config = json.loads((Path(cli.target) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    done = forked.run(("info", str(tmp_path)))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "config.json is wrong" in done.stderr


def test_what_becomes_of_the_tensors_of_a_gguf_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    others = {"ffn_down": Kind.Q6_K, "attn_output": Kind.Q2_K}
    write_model(path, kind=lambda name: others.get(name.split(".")[-2], Kind.Q4_1))
    content = json.loads(cli.run("info", str(path), "--json", "--device", "cpu").stdout)
    if not _native.AVAILABLE:
        assert content["dtype"] == "bf16"
        return
    assert content["dtype"] == "stored"
    errors = {entry["stored"]: entry["error"] for entry in content["tensors"]}
    assert errors["Q4_1"] == errors["F32"] == errors["Q6_K"] == 0 < errors["Q2_K"] < 0.01
    shown = cli.run("info", str(path)).stdout
    assert "x Q4_1, kept as they are" in shown
    assert "2 x Q6_K, kept as they are" in shown
    said = r"2 x Q2_K, in int8: off by 0\.\d\d% \(\S+ KiB, \S+ KiB in the file\)"
    assert re.search(said, " ".join(shown.split()))
