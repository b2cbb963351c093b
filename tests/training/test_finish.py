"""What is measured in training: it is that of the head that was kept, and drafters read it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from forerun import load
from forerun.errors import TrainingError
from forerun.heads.files import HeadFiles
from forerun.training.objective import RANKS, AcceptanceTable
from forerun.training.untrained import take_weights
from tests.helpers.drafter_runs import OWN, run_of, save_data, save_target

KINDS = ("eagle3", "medusa")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_target(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_data(tmp_path_factory.mktemp("data") / "data.jsonl", count=200)


@pytest.mark.parametrize("kind", ["draft", *KINDS])
def test_what_is_reported_is_of_the_weights_that_were_kept(
    target: str, data: str, tmp_path: Path, kind: str
) -> None:
    run = run_of(kind, target, data, tmp_path, tokens=200)
    run.run()
    own, files = run.content(), HeadFiles.open(tmp_path)
    assert files.own == own
    # In bf16 it is nearly what it was in training.
    take_weights(run.head, files)
    table = run.evaluate()
    assert table.lengths == pytest.approx(own["report"]["lengths"], abs=0.05)
    assert table.by_rank == [pytest.approx(line, abs=0.05) for line in own["acceptance_by_rank"]]
    assert [tokens for _, tokens, _ in own["report"]["curve"]] == [
        point.progress.tokens for point in run.report.curve
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_trees_follow_what_was_measured(
    target: str, data: str, tmp_path: Path, kind: str
) -> None:
    run = run_of(kind, target, data, tmp_path, tokens=60)
    run.run()
    table = HeadFiles.open(tmp_path).acceptance_by_rank
    assert table is not None
    assert len(table) == OWN[kind].get("steps", 3)
    assert {len(line) for line in table} == {RANKS}
    assert all(0 < sum(line) <= 1 for line in table)
    engine = load(target, {"model": str(tmp_path)})
    assert engine.drafter is not None
    assert engine.drafter.acceptance == table


def test_nobody_trains_where_a_head_is_measured(target: str, data: str, tmp_path: Path) -> None:
    """From the first step to the last figure."""
    run = run_of("medusa", target, data, tmp_path, tokens=60)
    refused: list[str] = []

    def other(evaluate: Callable[..., AcceptanceTable], *args: int) -> AcceptanceTable:
        with pytest.raises(TrainingError, match="another run trains in") as error:
            run_of("medusa", target, data, tmp_path, tokens=60).run()
        refused.append(str(error.value))
        return evaluate(*args)

    run.evaluate = partial(other, run.evaluate)  # type: ignore[method-assign]
    run.run()
    assert refused
    run_of("medusa", target, data, tmp_path, tokens=60).run()
