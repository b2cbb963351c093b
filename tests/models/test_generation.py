"""What generation_config.json recommends becomes the defaults of a request, or a typed error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import forerun
from forerun.errors import CheckpointError
from forerun.models import Checkpoint
from forerun.models.config import read_sampling_defaults
from tests.helpers.tiny_models import tiny_model

QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [3]}
SAID: list[tuple[Any, dict[str, Any]]] = [
    ({}, {}),
    (QWEN3, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    ({"do_sample": False, "temperature": 0.6, "top_k": 20}, {"temperature": 0.0}),
    (
        {"do_sample": False, "repetition_penalty": 1.1},
        {"temperature": 0.0, "repetition_penalty": 1.1},
    ),
    ({"do_sample": None, "temperature": None, "top_k": None}, {}),
    ({"do_sample": True, "min_p": 0.1, "max_length": 20, "pad_token_id": 0}, {"min_p": 0.1}),
    # A recommendation counts also where it equals our default.
    ({"temperature": 1, "top_p": 1.0, "top_k": 0}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0}),
]


def written(directory: Path, values: Any) -> Path:
    (directory / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    return directory


@pytest.mark.parametrize(("values", "defaults"), SAID)
def test_what_it_says_by_our_names(tmp_path: Path, values: Any, defaults: dict[str, Any]) -> None:
    assert read_sampling_defaults(written(tmp_path, values)) == defaults


def test_nothing_is_said_without_the_file(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == {}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "0.6"}, "temperature is '0.6'"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_p": 0}, "top_p is 0"),
        ({"do_sample": "no"}, "do_sample is 'no'"),
        ({"do_sample": False, "top_k": [1]}, "top_k is"),
        ([1], "no JSON object"),
    ],
)
def test_values_that_are_not_allowed_are_named_with_the_file(
    tmp_path: Path, values: Any, problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem) as refusal:
        read_sampling_defaults(written(tmp_path, values))
    assert "generation_config.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_they_are_those_of_the_checkpoint_and_of_its_engine(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    written(tmp_path, QWEN3)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.sampling_defaults == SAID[1][1]
    engine = forerun.load(checkpoint, False, tokenizer=_Digits())
    assert engine.sampling_defaults == SAID[1][1]
    engine.sampling_defaults.clear()
    assert engine.sampling_defaults == SAID[1][1], "a copy is handed out"
    [number] = [engine.add([1, 2], seed=3, max_tokens=5)]
    [running] = engine._scheduler.waiting
    assert running.request.request_id == number
    assert running.request.params == forerun.SamplingParams(**SAID[1][1], seed=3, max_tokens=5)


class _Digits:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [int(digit) for digit in text]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        return "".join(map(str, token_ids))
