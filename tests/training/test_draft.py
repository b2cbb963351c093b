"""Draft models: what is written is what was trained, by transformers' own forward; they begin as their
target; their acceptance is that of the rows; they learn; sizes that make no draft are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from forerun.core import Batch
from forerun.errors import CheckpointError, TrainingError
from forerun.heads.files import HeadFiles
from forerun.models.checkpoint import Checkpoint
from forerun.models.run_config import RunConfig
from forerun.training.conversations import Example, ExampleBatch
from forerun.training.draft import TextObjective
from forerun.training.objective import mean_of
from forerun.training.target import Teacher
from tests.helpers.drafter_runs import run_of, save_data, save_target
from tests.helpers.tiny_models import VOCAB, tokens

FAMILIES = (
    "llama",
    "llama-rope3",
    "llama-biases",
    "mistral",
    "qwen2-sliding",
    "qwen3",
    "gpt2",
    "gemma2",
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("targets")
    return {name: save_target(root / name, name) for name in FAMILIES}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_data(tmp_path_factory.mktemp("data") / "data.jsonl")


def logits_of(model: Any, token_ids: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(token_ids).logits
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_read_what_was_trained(
    targets: dict[str, str], data: str, tmp_path: Path, family: str
) -> None:
    run = run_of("draft", targets[family], data, tmp_path, own={"layers": 2})
    run.write()
    module = run.head.module.eval()
    # What is written is rounded to bf16.
    module.load_state_dict({k: v.bfloat16().float() for k, v in module.state_dict().items()})
    token_ids = tokens(2, 12)
    written = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours, theirs = (logits_of(model, token_ids) for model in (module, written))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    checkpoint = Checkpoint.open(tmp_path)
    # forerun's own decoder gives the same.
    target = checkpoint.load(RunConfig("fp32", "torch", torch.device("cpu")))
    batch = Batch.after(target.new_cache(2, 12), [0, 1], token_ids.tolist())
    logits = target.forward(batch, target.new_cache(2, 12)).logits
    assert logits is not None
    torch.testing.assert_close(ours, logits, rtol=1e-3, atol=1e-3)
    assert checkpoint.tokenizer.get_vocab() == run.checkpoint.tokenizer.get_vocab()
    assert checkpoint.eos_token_ids == run.checkpoint.eos_token_ids


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_draft_begins_with_spread_layers_of_its_target(
    targets: dict[str, str], data: str, tmp_path: Path, family: str
) -> None:
    """Layers 0 and 2 of three, its embedding, its output head and its final norm."""
    run = run_of("draft", targets[family], data, tmp_path, own={"layers": 2})
    theirs = load_file(Path(targets[family]) / "model.safetensors")
    ours = dict(run.head.module.named_parameters())
    for name, tensor in ours.items():
        stored = theirs[name.replace("layers.1.", "layers.2.")]
        near = {"rtol": 1e-2, "atol": 1e-2} if "layers" not in name else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(tensor, stored.float(), **near)
    trained = {name for name, p in run.head.module.named_parameters() if p.requires_grad}
    assert trained == {name for name in ours if ".layers." in name or name == "model.norm.weight"}


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("gpt2", {"hidden_size": 16}),
    ],
)
def test_training_accepts_more(
    targets: dict[str, str], data: str, tmp_path: Path, family: str, own: dict[str, Any]
) -> None:
    run = run_of(
        *("draft", targets[family], data, tmp_path),
        own={"layers": 2, **own},
        tokens=3000,
        validate_minutes=1e3,
        learning_rate=0.01,
    )
    before = {name: own.detach().clone() for name, own in run.head.module.named_parameters()}
    batches = [run.stream.batch(number) for number in range(4)]
    first = run.head.objective.evaluate(batches)
    report = run.run()
    last = run.head.objective.evaluate(batches)
    drawn = [category for category in first.lengths if category.endswith("T=1")]
    assert len(drawn) == 2
    assert all(last.lengths[category] > first.lengths[category] + 0.1 for category in drawn)
    for name, parameter in run.head.module.named_parameters():
        assert torch.equal(before[name], parameter) != parameter.requires_grad, name
    embeddings = [name for name in before if "embed" in name or "lm_head" in name]
    frozen = sum(before[name].numel() * 2 for name in embeddings) if not own else 0
    files = HeadFiles.open(tmp_path)
    assert report.weight_bytes == sum(t.nbytes for t in files.tensors.values())
    assert report.weight_bytes - report.trained_bytes == frozen
    assert files.own["report"]["trained_bytes"] == report.trained_bytes


def test_acceptance_is_that_of_the_rows(targets: dict[str, str], data: str, tmp_path: Path) -> None:
    """Of drafts of three tokens, one after another, as far as the answer has three."""
    run = run_of("draft", targets["llama"], data, tmp_path)
    module: Any = run.head.module
    prompt, answer = [5, 9, 2], [7, 1, 30, 12, 8, 22, 3, 40]
    for temperature in (0.0, 1.0):
        batch = ExampleBatch.of([Example(tuple(prompt), tuple(answer), "chat", temperature)])
        teacher = Teacher(run.target, (), torch.arange(VOCAB))
        objective = TextObjective(module, teacher, steps=3)
        lesson = teacher.show(batch, held_out=True)
        assert lesson.best is not None
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            states = module.model(batch.token_ids).last_hidden_state[0, 2:-1].bfloat16()
        q = (states @ module.lm_head.weight.T.bfloat16()).float().softmax(-1)
        accepted = torch.minimum(q, lesson.probs.float()).sum(-1)
        if not temperature:
            accepted = (q.argmax(-1) == lesson.best).float()
        wanted = [1 + accepted[i : i + 3].cumprod(0).sum() for i in (0, 3)]
        table = objective.evaluate([batch])
        assert mean_of(table.lengths) == pytest.approx(float(sum(wanted)) / 2, abs=1e-3)


def test_a_target_whose_output_head_cannot_be_run_alone(
    targets: dict[str, str], data: str, tmp_path: Path
) -> None:
    """It caps its logits; its draft learns from them as they are."""
    run = run_of("draft", targets["gemma2"], data, tmp_path, tokens=60)
    batch = run.stream.batch(0)
    teacher = Teacher(run.target, (), torch.arange(VOCAB))
    lesson = teacher.show(batch, held_out=True)
    model = AutoModelForCausalLM.from_pretrained(targets["gemma2"]).eval()
    for row, conversation in enumerate(batch.conversations):
        text = torch.tensor([[*conversation.prompt_ids, *conversation.answer_ids]])
        with torch.no_grad():
            logits = model(text).logits[0].float()
        wanted = logits[len(conversation.prompt_ids) - 1 : -1].softmax(-1)
        own = lesson.rows[row][lesson.rows[row] >= 0]
        torch.testing.assert_close(lesson.probs[own].float(), wanted, rtol=0.05, atol=0.01)
        assert lesson.best is not None
        assert torch.equal(lesson.best[own], wanted.argmax(-1))
    assert run.run().best.progress.tokens > 0


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"layers": 3}, "layers 3 and hidden_size 24 make .* no smaller than"),
        ({"layers": 1, "hidden_size": 96}, "layers 1 and hidden_size 96 make .* no smaller than"),
        ({"layers": 40, "hidden_size": 16}, "layers 40 and hidden_size 16 make .* no smaller than"),
        ({"hidden_size": 15}, "it must be even"),
    ],
)
def test_sizes_that_make_no_draft_are_refused(
    targets: dict[str, str], data: str, tmp_path: Path, own: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        run_of("draft", targets["llama"], data, tmp_path / "draft", own=own)
    assert not (tmp_path / "draft").exists()


def test_a_target_without_a_tokenizer(targets: dict[str, str], data: str, tmp_path: Path) -> None:
    bare = Path(save_target(tmp_path / "bare", "llama"))
    for path in bare.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        run_of("draft", str(bare), data, tmp_path / "draft")
