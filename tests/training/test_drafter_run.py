"""Training a head from files to a directory: what is written drafts, interrupted runs go on to the same
losses, micro-batches make one step, and what is wrong is refused with nothing spoiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forerun import load
from forerun.errors import ForerunError, TrainingError, UnsupportedModelError
from forerun.heads.files import HeadFiles
from forerun.params import SamplingParams
from forerun.training.conversations import ExampleBatch
from forerun.training.drafter_run import DrafterRun
from forerun.training.loop import LossPart
from forerun.training.objective import Drafts, Objective
from forerun.training.result import TrainingReport
from forerun.training.target import Lesson
from tests.helpers.covering import covering
from tests.helpers.drafter_runs import run_of, save_data, save_target
from tests.helpers.tiny_models import VOCAB

KINDS = ("draft", "eagle3", "medusa")
Losses = list[tuple[int, float]]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("targets")
    return {name: save_target(root / name, name) for name in ("llama", "gpt2", "gemma", "gemma2")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_data(tmp_path_factory.mktemp("data") / "data.jsonl")


def losses_of(report: TrainingReport) -> Losses:
    return [(point.progress.tokens, point.loss) for point in report.curve]


@pytest.mark.parametrize(("kind", "family"), covering(KINDS, ("llama", "gemma", "gpt2")))
def test_any_model_gets_a_drafter(
    targets: dict[str, str], data: str, tmp_path: Path, kind: str, family: str
) -> None:
    """What is written is opened by its directory alone, and changes nothing of greedy output."""
    run = run_of(kind, targets[family], data, tmp_path / "head")
    report = run.run()
    assert report.best.progress.tokens > 0
    assert all(1 <= length <= 4 for length in report.best.lengths.values())
    engine = load(
        targets[family],
        {"model": str(tmp_path / "head"), "num_speculative_tokens": 3, "policy": "fixed"},
        dtype="fp32",
    )
    assert engine.drafter is not None
    assert engine.drafter.name == run.kind
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    prompt = [3, 14, 15, 9, 2, 6]
    completion = engine.generate(prompt, params)
    assert completion.stats.num_draft_tokens > 0
    plain = list(engine.stream_plain(prompt, params))
    assert list(completion.token_ids) == [event.token_id for event in plain]


def test_what_is_written(targets: dict[str, str], data: str, tmp_path: Path) -> None:
    run = run_of("eagle3", targets["llama"], data, tmp_path / "head")
    report = run.run()
    files = HeadFiles.open(tmp_path / "head")
    assert files.kind == "eagle3"
    assert all(t.dtype in (torch.bfloat16, torch.int64, torch.bool) for t in files.tensors.values())
    own = files.own
    assert own["format_version"] == 1
    assert own["target"]["vocab_size"] == VOCAB
    assert len(own["target"]["chat_template"]) == 64
    assert own["recipe"]["method"] == "eagle3"
    assert own["recipe"]["settings"]["draft_vocab_size"] == 40
    assert own["recipe"]["head"]["steps"] == 3
    assert own["report"]["lengths"] == report.best.lengths
    assert own["report"]["tokens"] == report.best.progress.tokens
    # One of each category and temperature is held out.
    assert own["report"]["conversations"]["trained on"] == 20
    card = (tmp_path / "head" / "README.md").read_text()
    for category, length in report.best.lengths.items():
        assert f"| {category} | {length:.2f} |" in card
    assert "20 conversations trained on" in card
    # The most frequent tokens of the answers, and the stop token.
    ids = torch.arange(40) + files.tensors["d2t"]
    assert torch.equal(ids, run.ids)
    assert 3 in ids.tolist()


def test_two_runs_do_not_train_in_one_directory(
    targets: dict[str, str], data: str, tmp_path: Path
) -> None:
    refused: list[str] = []
    run = run_of("medusa", targets["llama"], data, tmp_path / "head")
    batches = run.stream.batch

    def again(number: int) -> ExampleBatch:
        if not refused:
            with pytest.raises(TrainingError, match="another run trains in") as error:
                run_of("medusa", targets["llama"], data, tmp_path / "head").run()
            refused.append(str(error.value))
        return batches(number)

    run.stream.batch = again  # type: ignore[method-assign]
    run.run()
    assert refused
    # One that has ended is in nobody's way.
    run_of("medusa", targets["llama"], data, tmp_path / "head").run()


class BreakError(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_goes_on_to_the_same_losses(
    targets: dict[str, str], data: str, tmp_path: Path, kind: str
) -> None:
    """Where it was interrupted in the middle of a step."""
    whole = losses_of(run_of(kind, targets["llama"], data, tmp_path / "whole").run())
    run = run_of(kind, targets["llama"], data, tmp_path / "parts")
    objective, calls = run.head.objective, []

    class Breaks(Objective):
        def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
            return objective.drafts(lesson, training=training)

        def __call__(self, batch: ExampleBatch) -> LossPart:
            calls.append(batch)
            if len(calls) == 4:
                raise BreakError
            return objective(batch)

    run.head = replace(run.head, objective=Breaks(None, objective.teacher))
    with pytest.raises(BreakError):
        run.run()
    assert losses_of(run.report) == whole[:3]
    again = run_of(kind, targets["llama"], data, tmp_path / "parts").run()
    assert losses_of(again) == whole
    assert len(whole) >= 6
    first, second = (tmp_path / name / "training" / "state.pt" for name in ("whole", "parts"))
    states = [torch.load(path, weights_only=True)["model"] for path in (first, second)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    # A spent budget adds nothing.
    assert run_of(kind, targets["llama"], data, tmp_path / "parts").run() == again


def test_patience_is_remembered(targets: dict[str, str], data: str, tmp_path: Path) -> None:
    """Nothing is learned, so that no validation is better than the first."""

    def trained(patience: int) -> list[int]:
        run = run_of(
            *("medusa", targets["llama"], data, tmp_path),
            patience=patience,
            learning_rate=1e-30,
            matrix_learning_rate=1e-30,
        )
        return [point.progress.tokens for point in run.run().curve]

    first = trained(2)
    assert len(first) == 3
    assert trained(2) == first
    later = trained(4)
    assert later[:3] == first
    assert len(later) == 5


def test_without_a_state_a_run_begins_anew(
    targets: dict[str, str], data: str, tmp_path: Path
) -> None:
    first = run_of("medusa", targets["llama"], data, tmp_path, tokens=300).run()
    (tmp_path / "training" / "state.pt").unlink()
    again = run_of("medusa", targets["llama"], data, tmp_path, tokens=300).run()
    assert again.untrained == first.untrained
    assert [(point.loss, point.lengths) for point in again.curve] == [
        (point.loss, point.lengths) for point in first.curve
    ]


def test_micro_batches_make_one_step(targets: dict[str, str], data: str, tmp_path: Path) -> None:
    """Three of them, by the loss of all their tokens."""
    run = run_of("eagle3", targets["llama"], data, tmp_path, micro_batches=3, tokens=1)
    parts = [run.head.objective(run.stream.batch(number)) for number in range(3)]
    total, weight = sum(float(p.total.detach()) for p in parts), sum(p.weight for p in parts)
    point = run.run().best
    assert point.loss == pytest.approx(total / weight, rel=1e-4)
    assert point.progress.tokens == sum(part.tokens for part in parts)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_nonsense_stops_at_the_last_good_state(
    targets: dict[str, str], data: str, tmp_path: Path, where: str
) -> None:
    run = run_of("medusa", targets["llama"], data, tmp_path)
    objective, calls = run.head.objective, []

    class Spoils(Objective):
        def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
            return objective.drafts(lesson, training=training)

        def __call__(self, batch: ExampleBatch) -> LossPart:
            calls.append(batch)
            part = objective(batch)
            if len(calls) < 4:
                return part
            if where == "loss":
                return replace(part, total=part.total * torch.nan)
            # Its value is zero, and its derivative infinite.
            weight = next(run.head.module.parameters())
            return replace(part, total=part.total + (weight.sum() * 0).clamp(min=0).sqrt())

    run.head = replace(run.head, objective=Spoils(None, objective.teacher))
    with pytest.raises(TrainingError, match=r"at step 3; the state of step 3 is in state\.pt"):
        run.run()
    state = torch.load(tmp_path / "training" / "state.pt", weights_only=True)
    assert state["progress"]["steps"] == 3
    assert all(tensor.isfinite().all() for tensor in state["model"].values())
    run_of("medusa", targets["llama"], data, tmp_path).run()


def test_nonsense_before_anything_is_saved(
    targets: dict[str, str], data: str, tmp_path: Path
) -> None:
    run = run_of("medusa", targets["llama"], data, tmp_path)
    with torch.no_grad():
        next(run.head.module.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingError, match="at step 0; no state has been saved"):
        run.run()
    assert not (tmp_path / "training" / "state.pt").exists()
    assert not (tmp_path / "model.safetensors").exists()


def test_what_belongs_to_another_recipe_is_refused(
    targets: dict[str, str], data: str, tmp_path: Path
) -> None:
    first = targets["llama"]
    run_of("medusa", first, data, tmp_path, tokens=100).run()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    others: list[Callable[[], DrafterRun]] = [
        lambda: run_of("medusa", first, data, tmp_path, seed=1),
        lambda: run_of("medusa", first, data, tmp_path, own={"heads": 4}),
        lambda: run_of("eagle3", first, data, tmp_path),
        lambda: run_of("medusa", targets["gpt2"], data, tmp_path),
    ]
    for other in others:
        with pytest.raises(TrainingError, match="holds a training by other settings"):
            other().run()
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    # A larger budget is the same recipe.
    later = run_of("medusa", first, data, tmp_path, tokens=200).run()
    assert later.curve[-1].progress.tokens >= 200


def test_broken_states_are_refused(targets: dict[str, str], data: str, tmp_path: Path) -> None:
    run_of("medusa", targets["llama"], data, tmp_path, tokens=100).run()
    state = tmp_path / "training" / "state.pt"
    whole = state.read_bytes()
    for spoiled in (b"", whole[: len(whole) // 2], b"\0" * 50):
        state.write_bytes(spoiled)
        with pytest.raises(TrainingError, match="does not belong to this recipe"):
            run_of("medusa", targets["llama"], data, tmp_path, tokens=100).run()
    state.write_bytes(whole)
    run_of("medusa", targets["llama"], data, tmp_path, tokens=100).run()


def test_training_begins_with_the_weights_of_a_head(
    targets: dict[str, str], data: str, tmp_path: Path
) -> None:
    run = run_of("medusa", targets["llama"], data, tmp_path / "first")
    run.run()
    earlier = str(tmp_path / "first")
    later = run_of("medusa", targets["llama"], data, tmp_path / "next", begin_with=earlier)
    stored = HeadFiles.open(earlier).tensors
    for name, tensor in later.head.module.state_dict().items():
        assert torch.equal(tensor, stored[name].float())
    assert torch.equal(later.ids, run.ids)
    other = run_of(
        *("medusa", targets["llama"], data, tmp_path / "fewer"),
        begin_with=earlier,
        draft_vocab_size=20,
    )
    other.write()
    files = HeadFiles.open(tmp_path / "fewer")
    assert files.own["recipe"]["settings"]["draft_vocab_size"] == len(files.tensors["d2t"]) == 40
    assert "it can draft 40 tokens" in (tmp_path / "fewer" / "README.md").read_text()
    with pytest.raises(TrainingError, match="is of another shape"):
        run_of(
            *("medusa", targets["llama"], data, tmp_path / "other"),
            begin_with=earlier,
            own={"heads": 4},
        )
    with pytest.raises(UnsupportedModelError, match="is a head of method 'medusa'"):
        run_of("eagle3", targets["llama"], data, tmp_path / "other", begin_with=earlier)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("count", "message"), [(0, "no conversation is there"), (1, "too few: some are held out")]
)
def test_data_that_is_too_little(
    targets: dict[str, str], tmp_path: Path, count: int, message: str
) -> None:
    little = save_data(tmp_path / "little.jsonl", count)
    with pytest.raises(TrainingError, match=message):
        run_of("medusa", targets["llama"], little, tmp_path / "head")
    assert not (tmp_path / "head").exists()


def test_two_conversations_are_enough(targets: dict[str, str], tmp_path: Path) -> None:
    little = save_data(tmp_path / "little.jsonl", 2)
    report = run_of("eagle3", targets["llama"], little, tmp_path / "head", tokens=60).run()
    assert report.conversations["trained on"] == report.conversations["held out"] == 1
    assert HeadFiles.open(tmp_path / "head").kind == "eagle3"


def test_a_target_whose_output_head_cannot_be_borrowed(
    targets: dict[str, str], data: str, tmp_path: Path
) -> None:
    """It caps its logits."""
    with pytest.raises(ForerunError, match="more than a product with a matrix"):
        run_of("eagle3", targets["gemma2"], data, tmp_path)
