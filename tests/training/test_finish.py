"""What is measured at the end of training: it is that of the head that was kept, and drafters read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forerun import load
from forerun.heads.files import HeadFiles
from forerun.training.finish import RANKS, finish
from tests.helpers.head_runs import OWN, run_of, save_data, save_target

KINDS = ("dspark", "eagle3", "medusa")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_target(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_data(tmp_path_factory.mktemp("data") / "data.jsonl", count=200)


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_that_was_kept_is_measured(
    target: str, data: str, tmp_path: Path, kind: str
) -> None:
    run = run_of(kind, target, data, tmp_path, tokens=200)
    run.run()
    kept = dict(HeadFiles.open(tmp_path).tensors)
    with torch.no_grad():
        for parameter in run.head.module.parameters():
            parameter.fill_(0.3)
    own = finish(run)
    files = HeadFiles.open(tmp_path)
    assert files.own == own
    assert all(torch.equal(tensor, kept[name]) for name, tensor in files.tensors.items())
    # In bf16 it is nearly what it was in training.
    assert run.evaluate().lengths == pytest.approx(own["report"]["lengths"], abs=0.05)
    contexts = own["report"]["contexts"]
    assert contexts.keys() == {"T=0", "T=1"}
    card = (tmp_path / "README.md").read_text()
    assert all(
        f"| {kind} | {lengths['to 256']:.2f} |" in card for kind, lengths in contexts.items()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_trees_follow_what_was_measured(
    target: str, data: str, tmp_path: Path, kind: str
) -> None:
    run = run_of(kind, target, data, tmp_path, tokens=60)
    run.run()
    finish(run)
    table = HeadFiles.open(tmp_path).acceptance_by_rank
    assert table is not None
    assert len(table) == OWN[kind].get("steps", 3)
    assert {len(line) for line in table} == {RANKS}
    assert all(0 < sum(line) <= 1 for line in table)
    engine = load(target, {"model": str(tmp_path)})
    assert engine.drafter is not None
    assert engine.drafter.acceptance == table
