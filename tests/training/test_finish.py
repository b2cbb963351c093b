"""What is measured at the end of training: it is that of the head that was kept, and drafters read it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from forerun import load
from forerun.core import Stats
from forerun.errors import TrainingError
from forerun.heads.files import HeadFiles
from forerun.training.acceptance import AcceptanceTable
from forerun.training.conversations import Example
from forerun.training.drafter_run import RANKS
from forerun.training.real_run import spread_prompts
from forerun.training.settings import FinishSettings
from forerun.training.untrained import take_weights
from tests.helpers.drafter_runs import OWN, run_of, save_data, save_target

KINDS = ("dspark", "eagle3", "medusa")
QUIET = FinishSettings(real_run=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_target(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_data(tmp_path_factory.mktemp("data") / "data.jsonl", count=200)


@pytest.mark.parametrize("kind", ["draft", *KINDS])
def test_the_head_that_was_kept_is_measured(
    target: str, data: str, tmp_path: Path, kind: str
) -> None:
    run = run_of(kind, target, data, tmp_path, tokens=200)
    run.run()
    kept = dict(HeadFiles.open(tmp_path).tensors)
    state = tmp_path / "training" / "state.pt"
    last = torch.load(state, weights_only=True)
    for tensor in last["model"].values():
        tensor.fill_(0.3)
    torch.save(last, state)
    run.run(QUIET)
    own, files = run.content(), HeadFiles.open(tmp_path)
    assert files.own == own
    assert all(torch.equal(tensor, kept[name]) for name, tensor in files.tensors.items())
    # Training goes on from its last weights.
    saved = torch.load(state, weights_only=True)
    assert saved["notes"]["measured"].keys() == run.report.measured.keys()
    assert all(
        torch.equal(tensor, torch.full_like(tensor, 0.3)) for tensor in saved["model"].values()
    )
    # In bf16 it is nearly what it was in training.
    take_weights(run.head, files)
    assert run.evaluate().lengths == pytest.approx(own["report"]["lengths"], abs=0.05)
    assert [tokens for tokens, _ in own["report"]["curve_by_category"]][1:] == [
        point.progress.tokens for point in run.report.curve
    ]
    assert "<polyline" in (tmp_path / "curve.svg").read_text()
    contexts = own["report"]["contexts"]
    assert contexts.keys() == {"T=0", "T=1"}
    card = (tmp_path / "README.md").read_text()
    assert "(curve.svg)" in card
    assert all(
        f"| {kind} | {lengths['to 256']:.2f} |" in card for kind, lengths in contexts.items()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_trees_follow_what_was_measured(
    target: str, data: str, tmp_path: Path, kind: str
) -> None:
    run = run_of(kind, target, data, tmp_path, tokens=60)
    run.run(QUIET)
    table = HeadFiles.open(tmp_path).acceptance_by_rank
    assert table is not None
    assert len(table) == OWN[kind].get("steps", 3)
    assert {len(line) for line in table} == {RANKS}
    assert all(0 < sum(line) <= 1 for line in table)
    engine = load(target, {"model": str(tmp_path)})
    assert engine.drafter is not None
    assert engine.drafter.acceptance == table


def test_a_real_run_is_that_of_the_engine(target: str, data: str, tmp_path: Path) -> None:
    run = run_of("eagle3", target, data, tmp_path, tokens=60)
    run.run(FinishSettings(real_run_prompts=3, real_run_tokens=8))
    report = run.content()["report"]
    greedy, drawn = report["real_run"]["runs"]
    assert (greedy["temperature"], drawn["temperature"]) == (0.0, 1.0)
    prompts = spread_prompts(run.held, 3)
    engine = load(
        target,
        {"model": str(tmp_path), "num_speculative_tokens": 3, "policy": "fixed"},
        max_context=64,
    )
    answers = [engine.generate(prompt, temperature=0, max_tokens=8) for prompt in prompts]
    stats = Stats.total(answer.stats for answer in answers)
    assert stats.num_draft_tokens > 0
    assert greedy["mean_acceptance_length"] == stats.mean_acceptance_length
    assert greedy["tokens"] == stats.num_emitted_tokens
    assert greedy["identical"] == greedy["prompts"] == 3
    assert drawn["identical"] is None
    assert min(greedy["speedup"], drawn["speedup"]) > 0
    card = (tmp_path / "README.md").read_text()
    assert "| T=0 | " in card
    assert " | 3 of 3 |" in card


def test_confidence_is_calibrated(target: str, data: str, tmp_path: Path) -> None:
    """What is written corrects the head's expectations on other text; heads without any have none."""
    for kind in ("dspark", "medusa"):
        run = run_of(kind, target, data, tmp_path / kind, tokens=200)
        run.run(QUIET)
        own = run.content()
        errors, lines = own["report"].get("confidence_errors"), own.get("confidence_calibration")
        card = (tmp_path / kind / "README.md").read_text()
        assert ("expected calibration error" in card) == (kind == "dspark")
        if kind == "medusa":
            assert errors is lines is None
            continue
        assert len(errors["before"]) == len(errors["after"]) == 3
        assert (lines is not None) == (sum(errors["after"]) < sum(errors["before"]))
        assert lines is None or HeadFiles.open(tmp_path / kind).calibration is not None


def test_nobody_trains_where_a_head_is_measured(target: str, data: str, tmp_path: Path) -> None:
    """From the first step to the last figure."""
    run = run_of("medusa", target, data, tmp_path, tokens=60)
    run.run()
    refused: list[str] = []

    def other(evaluate: Callable[..., AcceptanceTable], *args: int) -> AcceptanceTable:
        with pytest.raises(TrainingError, match="another run trains in") as error:
            run_of("medusa", target, data, tmp_path, tokens=60).run()
        refused.append(str(error.value))
        return evaluate(*args)

    run.evaluate = partial(other, run.evaluate)  # type: ignore[method-assign]
    run.run(QUIET)
    assert refused
    run_of("medusa", target, data, tmp_path, tokens=60).run()


def test_better_weights_have_no_earlier_measurements(
    target: str, data: str, tmp_path: Path
) -> None:
    run_of("medusa", target, data, tmp_path, tokens=60).run(QUIET)
    measured = HeadFiles.open(tmp_path)
    assert measured.acceptance_by_rank is not None
    assert "contexts" in measured.own["report"]
    run = run_of("medusa", target, data, tmp_path, tokens=400)
    report = run.run()
    assert report.best.progress.tokens > measured.own["report"]["tokens"]
    better = HeadFiles.open(tmp_path)
    assert better.acceptance_by_rank is None
    assert "contexts" not in better.own["report"]


def test_prompts_come_in_turn_from_each_category() -> None:
    made = [
        Example((number,), (1,), kind)
        for number, kind in [(1, "a"), (2, "a"), (2, "a"), (3, "b"), (1, "b"), (4, "a")]
    ]
    assert spread_prompts(made, 4) == [[1], [3], [2], [4]]
    assert spread_prompts(made, 2) == [[1], [3]]
    assert spread_prompts([], 2) == []
