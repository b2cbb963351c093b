"""Added layers change no bit of what a model says, and what the benchmark reports is of that model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from benchmarks import deep_target
from benchmarks.deep_target import main, settings
from benchmarks.deepened import layers_for, write_deep, write_deep_head
from forerun.bench.settings import COLD, DEFAULT
from forerun.engine.config import SpeculativeConfig
from forerun.engine.resolve import Resolved
from forerun.errors import ConfigError
from forerun.heads.eagle3 import Eagle3Config
from forerun.heads.files import HeadFiles
from forerun.models import Checkpoint, Placement
from tests.helpers.covering import covering
from tests.helpers.eagle_heads import Made, write
from tests.helpers.forwards import run
from tests.helpers.gguf_files import EXACT, VOCAB, write_model
from tests.helpers.kernel_models import needs_kernels

TEXT = [5, 9, 200, 31, 77, 5, 9, 254, 13, 13, 90, 101]
OWN, DEEP = 2, 7
HEAD = Made(hidden=256, target_hidden=256, vocab=VOCAB, head_dim=64, inner=128, ids=(1, 2, 2))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_model(tmp_path / "own.gguf", kind=Kind.Q4_1, tied=True, num_hidden_layers=OWN)
    return tmp_path / "own.gguf"


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "kind"), covering(["auto", "int8", "int4", "bf16", "fp32"], EXACT)
)
def test_all_states_and_logits_are_the_same_bit_for_bit(
    dtype: str, kind: Kind, tmp_path: Path
) -> None:
    write_model(tmp_path / "own.gguf", kind=kind, num_hidden_layers=OWN)
    deep = write_deep(tmp_path / "own.gguf", tmp_path / "deep.gguf", DEEP)
    outputs = []
    for path in (tmp_path / "own.gguf", deep):
        opened = Checkpoint.open(path)
        model = opened.load(opened.run_config(Placement(dtype, "cpu", "kernels")))
        cache, layers = model.new_cache(1, 32), tuple(range(OWN + 1))
        steps = [run(model, cache, [part], hidden_layers=layers) for part in (TEXT[:8], TEXT[8:])]
        assert model.num_layers == (OWN if path is not deep else DEEP)
        outputs.append(steps)
    for own, same in zip(*outputs, strict=True):
        assert torch.equal(own.logits, same.logits)
        assert own.logits.std() > 0
        for layer in range(OWN + 1):
            assert torch.equal(own.hidden[layer], same.hidden[layer])


def test_the_added_layers_are_stored_as_the_others_are(source: Path, tmp_path: Path) -> None:
    deep = write_deep(source, tmp_path / "deep.gguf", DEEP)
    own, more = (Checkpoint.open(path).header for path in (source, deep))  # type: ignore[attr-defined]
    layers = {name for name in more.tensors if name.startswith(f"blk.{DEEP - 1}.")}
    assert len(more.tensors) == len(own.tensors) + (DEEP - OWN) * len(layers)
    for name in layers:
        before = own.tensors[name.replace(f"blk.{DEEP - 1}.", "blk.0.")]
        assert (more.tensors[name].kind, more.tensors[name].shape) == (before.kind, before.shape)
        assert any(part in name for part in ("attn_output", "ffn_down")) == (
            not more.tensors[name].bytes().any()
        )
    changed = {key for key in own.metadata if own.metadata[key] != more.metadata[key]}
    assert changed == {"llama.block_count"}


def test_so_many_parameters(source: Path, tmp_path: Path) -> None:
    layers = layers_for(source, 0.02)
    deep = write_deep(source, tmp_path / "deep.gguf", layers)
    tensors = Checkpoint.open(deep).header.tensors  # type: ignore[attr-defined]
    assert sum(tensor.rows * tensor.shape[-1] for tensor in tensors.values()) == pytest.approx(
        2e7, rel=0.02
    )
    with pytest.raises(ConfigError, match=r"own\.gguf has 0\.001 billion parameters"):
        layers_for(source, 0.0001)


def test_a_head_reads_the_layers_that_it_was_trained_on(tmp_path: Path) -> None:
    head = write(tmp_path / "head", HEAD, "modelopt")
    found = HeadFiles.open(write_deep_head(head, tmp_path / "named", OWN))
    assert Eagle3Config.read(found.config, "").hidden_layers == HEAD.ids
    config = json.loads((head / "config.json").read_text())
    del config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    (head / "config.json").write_text(json.dumps(config))
    found = HeadFiles.open(write_deep_head(head, tmp_path / "default", 30))
    assert Eagle3Config.read(found.config, "").hidden_layers == (2, 15, 27)
    assert found.tensors.keys() == HeadFiles.open(head).tensors.keys()


@pytest.fixture
def tiny(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The benchmark of a tiny model, with questions of two sets."""
    head = write(tmp_path / "smollm2-eagle3", HEAD, "vllm")
    monkeypatch.setattr(deep_target, "packaged_path", lambda _: source)
    monkeypatch.setattr(deep_target, "packaged_head", lambda *_: head)
    for name in ("one", "two"):
        lines = [json.dumps({"question_id": i, "turns": [f"ab{name}", "no"]}) for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.usefixtures("tiny")
def test_the_default_drafts_with_the_head_for_the_deep_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = deep_target.Deep.make(0.02, tmp_path / "work")
    packaged = SpeculativeConfig(method="eagle3", model=str(tmp_path / "smollm2-eagle3"))
    monkeypatch.setattr(deep_target, "choose", lambda *_: Resolved(packaged))
    chosen = {setting.name: setting.config for setting in settings(deep, ["suffix"], (1, 2), None)}
    assert list(chosen) == [DEFAULT, COLD, "suffix, 1 token", "suffix, 2 tokens"]
    assert chosen[DEFAULT].model == str(deep.head) != packaged.model


@needs_kernels
def test_the_report(tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        *("--billions", "0.005", "--max-tokens", "9", "--lengths", "1", "2", "--temperatures", "0"),
        *("--questions", str(tiny / "one.jsonl"), str(tiny / "two.jsonl"), "--work", str(tiny)),
        *("--draft-model", str(source), "--rows", str(tiny / "rows.jsonl")),
        *("--methods", "suffix", "eagle3", "layer_skip"),
    ]
    main([*command, "--json"])
    content = json.loads(capsys.readouterr().out)
    cells = {(cell["setting"], cell["category"]): cell for cell in content["cells"]}
    assert {category for _, category in cells} == {"all", "one", "two"}
    assert all(cell["identical"] == cell["comparable"] == cell["pairs"] for cell in cells.values())
    assert cells["suffix, 2 tokens", "one"]["pairs"] == 2
    # The model itself, without the added layers, is always right.
    for right in ("draft_model", "layer_skip"):
        assert cells[f"{right}, 2 tokens", "all"]["tokens_per_target_forward"]["value"] == 3.0
    # An interrupted run measures what is missing: nothing, here.
    before = (tiny / "rows.jsonl").read_text()
    main(command)
    assert (tiny / "rows.jsonl").read_text() == before
    printed = capsys.readouterr().out
    assert "| T = 0 | all | one | two | same text |" in printed
    assert "the cost is a larger model's" in printed
    assert (
        sum(line.startswith(("| default", "| suffix", "| eagle3")) for line in printed.splitlines())
        == 4
    )
