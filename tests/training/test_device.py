"""Training happens where the target is: on a device that is not the CPU it finds the CPU's own figures."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.contracts import CausalLM
from forerun.heads.files import HeadFiles
from forerun.models.run_config import RunConfig
from forerun.training.drafter_run import RECIPES, DrafterRun
from forerun.training.result import TrainingReport
from tests.helpers.drafter_runs import run_of, save_data, save_target
from tests.helpers.pretend_device import pretended

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what a device must have of its own: a fused optimizer and 16-bit products."""
    monkeypatch.setattr(torch.optim, "AdamW", partial(_unfused, torch.optim.AdamW))
    monkeypatch.setattr(torch, "autocast", lambda *_: nullcontext())


def _unfused(kind: Any, *args: Any, fused: bool, **kwargs: Any) -> Any:
    return kind(*args, **kwargs)


def trained(
    kind: str, device: torch.device, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[float], TrainingReport]:
    """The losses of a few steps on a device, and the report."""

    def load(run: DrafterRun) -> CausalLM:
        return run.checkpoint.load(RunConfig("fp32", "torch", device))

    monkeypatch.setattr(DrafterRun, "_load_target", load)
    out = folder / device.type
    model, data = str(folder / "target"), str(folder / "data.jsonl")
    run = run_of(kind, model, data, out, tokens=200)
    run.evaluate()
    report = run.run()
    assert run.target.device == device
    assert {tensor.device for tensor in run.head.module.parameters()} == {device}
    return [point.loss for point in report.curve], report


@pytest.mark.parametrize(
    "kind",
    ["eagle3", *(pytest.param(k, marks=pytest.mark.slow) for k in RECIPES if k != "eagle3")],
)
def test_any_drafter_is_trained_on_its_targets_device(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_target(tmp_path / "target", "llama")
    save_data(tmp_path / "data.jsonl")
    expected, ours = trained(kind, CPU, tmp_path, monkeypatch)
    with pretended(monkeypatch) as device:
        losses, report = trained(kind, device, tmp_path, monkeypatch)
    assert len(losses) >= 3
    assert losses == pytest.approx(expected, rel=1e-3)
    assert report.best.mean_length == pytest.approx(ours.best.mean_length, rel=1e-2)
    if kind != "draft":
        assert HeadFiles.open(tmp_path / device.type).kind == kind
