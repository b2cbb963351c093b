"""The recipe end to end at toy size: it learns, resumes exactly, and publishes what loads."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import forerun
from forerun.models.config import as_transformers
from recipes import zoo
from recipes.corpus import read_modules
from recipes.windows import Phase, Windows, train_on_windows
from recipes.zoo import DISTILLATION_SETTINGS, DRAFT_SETTINGS, TARGET_SETTINGS, Shape
from tests.helpers.gguf_files import read_by_transformers

TINY: dict[str, Any] = {
    "batch_tokens": 512,
    "micro_batch_tokens": 256,
    "phases": (Phase(0.5, 32), Phase(1.0, 64)),
    "log_every_steps": 1,
}
SETTINGS = replace(TARGET_SETTINGS, max_tokens=512 * 12, **TINY)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small standard library: modules with functions that repeat a pattern."""
    folder = tmp_path_factory.mktemp("library")
    for number in range(80):
        body = "".join(f"    total += step_{index} * {number}\n" for index in range(12))
        source = f"def function_{number}(step, total):\n{body}    return total\n\n\n" * 3
        (folder / f"module_{number}.py").write_text(source)
    (folder / "LICENSE.txt").write_text("PSF")
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """The recipe with small models, on the small library."""
    monkeypatch.setattr(zoo, "TARGET", Shape(32, 2, 64, 2, 1, 16))
    monkeypatch.setattr(zoo, "DRAFT", Shape(16, 1, 32, 2, 1, 8))
    monkeypatch.setattr(zoo, "VOCAB_SIZE", 400)
    monkeypatch.setattr(zoo, "NUM_PROMPTS", 2)
    monkeypatch.setattr(zoo, "read_modules", lambda: read_modules(library))
    monkeypatch.setattr(zoo, "standard_library", lambda: library)
    for name, settings in (
        ("TARGET_SETTINGS", SETTINGS),
        ("DRAFT_SETTINGS", replace(DRAFT_SETTINGS, max_tokens=512 * 4, **TINY)),
        ("DISTILLATION_SETTINGS", replace(DISTILLATION_SETTINGS, max_tokens=512 * 4, **TINY)),
    ):
        monkeypatch.setattr(zoo, name, settings)


def test_the_recipe_learns_and_publishes_a_pair_that_loads(
    tiny: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work, package = tmp_path / "work", tmp_path / "package"
    seconds = ["--target-seconds", "600", "--target-tokens", str(SETTINGS.max_tokens)]
    arguments = ["--work", str(work), "--publish", str(package), "--device", "cpu", *seconds]
    with caplog.at_level(logging.INFO, "forerun.training.loop"):
        zoo.main(arguments)
    # The target is trained first.
    losses = [float(text.split()[1]) for text in caplog.messages if text.startswith("loss ")][:12]
    assert losses[-1] < losses[0] - 0.5
    report = json.loads((package / "report.json").read_text())
    assert 0 < report["greedy"]["acceptance_rate"] <= 1
    assert (package / "LICENSE.txt").read_text() == "PSF"
    engine = forerun.load(
        str(package / "target.gguf"),
        forerun.SpeculativeConfig(model=str(package / "draft")),
        dtype="fp32",
    )
    trained = AutoModelForCausalLM.from_pretrained(work / "checkpoint")
    assert next(iter(trained.parameters())).dtype == torch.bfloat16
    path = package / "target.gguf"
    theirs = read_by_transformers(
        path, as_transformers(forerun.models.Checkpoint.open(path).config)
    )
    ids = AutoTokenizer.from_pretrained(work / "checkpoint").encode("def function_3(step")
    assert ids == engine.tokenizer.encode("def function_3(step")  # type: ignore[union-attr]
    expected = theirs.generate(
        torch.tensor([ids]), max_new_tokens=10, do_sample=False, eos_token_id=None
    )
    params = forerun.SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    assert list(engine.generate(["def function_3(step"], params)[0].token_ids) == (
        expected[0, len(ids) :].tolist()
    )
    before = (work / "target.pt").stat().st_mtime_ns
    zoo.main(arguments)  # everything is there: nothing is trained again
    assert (work / "target.pt").stat().st_mtime_ns == before


def test_a_run_that_was_stopped_ends_where_one_that_was_not_does(
    tiny: None, tmp_path: Path
) -> None:
    corpus = zoo.prepare_corpus(tmp_path)

    always = replace(SETTINGS, save_every_seconds=-1.0)

    def train(state: Path, max_steps: int = 10**6) -> dict[str, torch.Tensor]:
        model, calls = zoo.TARGET.build(), []

        def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            calls.append(batch)
            if len(calls) > max_steps:
                raise KeyboardInterrupt
            return zoo.plain_loss(model, batch)

        train_on_windows(model, loss, Windows(corpus.train, 0), always, state)
        return model.state_dict()

    whole = train(tmp_path / "whole.pt")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts.pt", max_steps=5)
    resumed = train(tmp_path / "parts.pt")
    for name, tensor in whole.items():
        torch.testing.assert_close(tensor, resumed[name], rtol=0, atol=0)


def test_seconds_end_a_run_too(tiny: None, tmp_path: Path) -> None:
    corpus = zoo.prepare_corpus(tmp_path)
    hurried = replace(SETTINGS, max_seconds=1e-3)
    spent = train_on_windows(
        zoo.TARGET.build(), zoo.plain_loss, Windows(corpus.train, 0), hurried, tmp_path / "x.pt"
    )
    assert spent.steps == 1
