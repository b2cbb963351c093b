"""From names to an engine: what is picked, and what is refused before anything is loaded."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import forerun
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine.resolve import KNOWN_DRAFTS, choose
from forerun.errors import ConfigError, MemoryLimitError
from forerun.registry import entry_points_of
from tests.helpers.tiny_models import VOCAB, tiny_model

Config = forerun.SpeculativeConfig


def save(folder: Path, family: str, *, swapped: bool = False, extra: int = 0) -> str:
    tiny_model(family).save_pretrained(folder)
    vocabulary = {f"t{number}": number for number in range(VOCAB - 4 + extra)}
    if swapped:
        vocabulary["t3"], vocabulary["t4"] = 4, 3
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("saved")
    return {
        "target": save(root / "target", "qwen3"),
        "draft": save(root / "draft", "llama"),
        "swapped": save(root / "swapped", "llama", swapped=True),
        "larger": save(root / "larger", "llama", extra=2),
    }


def test_a_known_draft_is_picked_and_said() -> None:
    choice = choose(Config(), "Qwen/Qwen3-4B")
    assert (choice.config.method, choice.config.model) == ("cascade", "Qwen/Qwen3-0.6B")
    assert [drafter.name for drafter in choice.config.drafters] == [
        "cascade",
        "suffix",
        "draft_model",
    ]
    assert "known draft" in str(choice.note)
    assert choose(Config(), "zoo").config.model == "zoo-draft"
    assert all(target != draft for target, draft in KNOWN_DRAFTS.items())


def test_looking_up_is_the_fallback_and_says_so() -> None:
    choice = choose(Config(), "somebody/something")
    assert choice.config.method == "suffix"
    assert "suffix" in str(choice.note)


def test_what_is_named_is_taken() -> None:
    assert choose(Config(method="ngram"), "Qwen/Qwen3-4B").config.method == "ngram"
    assert choose(Config(model="x/y"), "Qwen/Qwen3-4B").config.model == "x/y"
    assert choose(Config(model="x/y"), "Qwen/Qwen3-4B").note is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(method="draft_model"), "no draft model is known"),
        (Config(method="ngram", model="x/y"), "takes no draft model"),
        (Config(revision="main"), "belongs to no draft model"),
        (Config(options={"draft_dtype": "bf16"}), "draft_dtype is not read by method 'suffix'"),
        (Config(options={"exit_layer": 2}), "or use method 'layer_skip'"),
    ],
    ids=str,
)
def test_open_ends_are_refused(config: Config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(config, "somebody/something")


def test_load_builds_what_was_asked_for(saved: dict[str, str]) -> None:
    engine = forerun.load(saved["target"], Config(model=saved["draft"]), max_batch_size=3)
    assert isinstance(engine.drafter, DraftModelDrafter)
    assert engine.max_context == 64
    assert engine.eos_token_ids == {3}
    assert isinstance(forerun.load(saved["target"]).drafter, SuffixDrafter)
    assert forerun.load(saved["target"], False).drafter is None


@pytest.mark.parametrize("other", ["swapped", "larger"])
def test_a_draft_of_another_vocabulary_is_translated(saved: dict[str, str], other: str) -> None:
    engine = forerun.load(saved["target"], Config(model=saved[other]))
    assert isinstance(engine.drafter, DraftModelDrafter)
    assert engine.drafter.translation is not None
    engine = forerun.load(saved["target"], Config(model=saved["draft"]))
    assert isinstance(engine.drafter, DraftModelDrafter)
    assert engine.drafter.translation is None


def test_the_target_is_no_draft_of_its_own(saved: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"is the target .* itself"):
        forerun.load(saved["target"], Config(model=saved["target"] + "/"))


def test_what_does_not_fit_is_refused_with_numbers(
    saved: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.models.memory.available_bytes", lambda device: 10_000)
    with pytest.raises(MemoryLimitError, match="are needed on cpu but"):
        forerun.load(saved["target"], Config(model=saved["draft"]))


def test_third_party_drafters_are_found_by_entry_point(
    saved: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package as pip leaves it."""
    (tmp_path / "parrot.py").write_text(
        "from forerun.drafters.suffix import SuffixDrafter\n\n\n"
        "class Parrot(SuffixDrafter):\n    name = 'parrot'\n"
    )
    info = tmp_path / "parrot-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[forerun.drafters]\nparrot = parrot:Parrot\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry_points_of.cache_clear()
    try:
        engine = forerun.load(saved["target"], Config(method="parrot"))
        assert engine.drafter is not None
        assert engine.drafter.name == "parrot"
        with pytest.raises(forerun.ForerunError, match="parrot"):
            Config(method="parot")
    finally:
        entry_points_of.cache_clear()


def test_a_checkpoint_without_its_config_is_refused(saved: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(forerun.ForerunError, match=r"config\.json"):
        forerun.load(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(forerun.ForerunError, match="recurrent"):
        forerun.load(str(tmp_path))


ODD: list[Any] = [
    *(None, True, 0, -1, 2, 10**30, 2.5, float("nan"), 1j),
    *("", "auto", "no such thing", "\udcff", "x" * 5000, b"cpu", Path("cpu")),
    *([], ["cpu"], (), {}, {"dtype": "fp32"}, set(), iter([1])),
    *(object(), object, len, lambda: None, NotImplemented, ..., Config),
    *(np.array(3), np.array([1, 2]), np.float32(2.0), np.str_("fp32")),
    *(torch.tensor(2), torch.tensor([1.0]), torch.float32, torch.device("cpu")),
]
PARAMETERS = list(inspect.signature(forerun.load).parameters)


@pytest.mark.parametrize("name", PARAMETERS)
def test_arguments_of_any_type_load_or_are_refused(
    name: str, saved: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misuse is never an AttributeError or a TypeError out of the middle of something."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    usual: dict[str, Any] = {"model": saved["target"], "speculative": False, "device": "cpu"}
    refusals = []
    for value in ODD:
        try:
            engine = forerun.load(**usual | {name: value})
        except forerun.ForerunError as error:
            refusals.append(str(error))
        else:
            assert engine.max_context >= 2
    assert len(refusals) > len(ODD) / 2
    assert not [text for text in refusals if "\n" in text]
