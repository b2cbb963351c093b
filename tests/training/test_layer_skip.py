"""Training an adapter behind an early exit: it begins as the plain exit, and learns to be accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forerun.errors import TrainingError, UnsupportedModelError
from forerun.heads.files import HeadFiles
from forerun.models.checkpoint import Checkpoint
from forerun.models.placement import Placement
from forerun.training.layer_skip import LayerSkipModule, norm_of
from tests.helpers.drafter_runs import run_of, save_data, save_target


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("targets")
    return {name: save_target(root / name, name) for name in ("llama", "gpt2", "gemma")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_data(tmp_path_factory.mktemp("data") / "data.jsonl")


def test_it_begins_as_the_plain_exit(targets: dict[str, str], data: str, tmp_path: Path) -> None:
    """Of the draft's tokens it says what the target's own final norm and output head say of the exit."""
    run = run_of("layer_skip", targets["llama"], data, tmp_path)
    module, on = run.head.module, run.target
    assert isinstance(module, LayerSkipModule)
    states = torch.randn(2, 9, on.hidden_size)
    with torch.no_grad():
        ours = module(states) @ module.output.T
    theirs = on.lm_head(on.final_norm(states.to(on.dtype)))[..., run.ids].float()
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.03)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_norm_is_read_off(targets: dict[str, str], family: str) -> None:
    checkpoint = Checkpoint.open(targets[family])
    on = checkpoint.load(checkpoint.run_config(Placement("fp32", "cpu", "torch")))
    name = {"llama": "model.norm.weight", "gpt2": "transformer.ln_f.weight"}[family]
    stored = checkpoint.with_weights().source()
    torch.testing.assert_close(norm_of(on), stored.read(name).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_training_accepts_more(
    targets: dict[str, str], data: str, tmp_path: Path, family: str
) -> None:
    """Than the plain exit does, by losses that fall; the target's rows are not written."""
    run = run_of(
        *("layer_skip", targets[family], data, tmp_path),
        own={"exit_layer": 2},
        tokens=3000,
        validate_minutes=1e3,
        learning_rate=0.01,
    )
    batches = [run.stream.batch(number) for number in range(4)]

    def loss() -> float:
        parts = [run.head.objective(batch) for batch in batches]
        return sum(float(part.total.detach()) for part in parts) / sum(p.weight for p in parts)

    first, before = run.head.objective.evaluate(batches), loss()
    report = run.run()
    last = run.head.objective.evaluate(batches)
    assert loss() < before - 0.05
    drawn = [category for category in first.lengths if category.endswith("T=1")]
    assert len(drawn) == 2
    assert all(last.lengths[category] > first.lengths[category] + 0.1 for category in drawn)
    files = HeadFiles.open(tmp_path)
    assert files.kind == "layer_skip"
    assert files.config["exit_layer"] == 2
    assert files.own["hidden_layers"] == [2]
    offsets = files.tensors["d2t"]
    assert torch.equal(offsets + torch.arange(len(offsets)), run.ids)
    assert report.weight_bytes - report.trained_bytes == offsets.nbytes
    assert not any("lm_head" in name or name == "output" for name in files.tensors)


@pytest.mark.parametrize(
    ("family", "own", "kind", "message"),
    [
        ("llama", {"exit_layer": 3}, TrainingError, "the exit is after layer 3 and"),
        ("gemma", {}, UnsupportedModelError, "layers"),
    ],
)
def test_targets_without_such_an_exit_are_refused(
    targets: dict[str, str],
    data: str,
    tmp_path: Path,
    family: str,
    own: dict[str, int],
    kind: type[Exception],
    message: str,
) -> None:
    with pytest.raises(kind, match=message):
        run_of("layer_skip", targets[family], data, tmp_path / "head", own=own)
    assert not (tmp_path / "head").exists()
