"""SmolLM2 from its GGUF file, as transformers reads the same file."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

import forerun
from forerun.models import Checkpoint
from tests.helpers.forwards import most_likely
from tests.helpers.gguf_files import read_by_transformers
from tests.helpers.real_model import needs_gemma3, needs_smollm2

QUESTIONS = ("Why is the sky blue?", "What is 17 + 25?")


@needs_smollm2
@pytest.mark.slow
def test_greedy_answers_in_float32() -> None:
    path = Checkpoint.open("smollm2").location.file
    assert path is not None
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    theirs = read_by_transformers(path, config)
    engine = forerun.load("smollm2", dtype="fp32", device="cpu")
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        ours = engine.chat(messages, temperature=0, max_tokens=12, ignore_eos=True)
        assert list(ours.token_ids) == most_likely(theirs, ours.prompt_ids, ours.token_ids)


@needs_smollm2
def test_it_runs_in_the_numbers_of_its_file() -> None:
    opened = Checkpoint.open("smollm2")
    assert opened.eos_token_ids == {0, 2}
    assert all(entry.error == 0 for entry in opened.held)
    assert {entry.stored for entry in opened.held} == {"Q4_1", "Q8_0", "F32"}


@needs_gemma3
@pytest.mark.slow
def test_gemma_goes_on_as_it_does_in_transformers() -> None:
    opened = Checkpoint.open("gemma3")
    path = opened.location.file
    assert path is not None
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    theirs = read_by_transformers(path, config)
    engine = forerun.load("gemma3", dtype="fp32", device="cpu")
    for prompt in ("The capital of France is", "def fibonacci(n):", "Water boils at"):
        ours = engine.generate(prompt, temperature=0, max_tokens=12, ignore_eos=True)
        assert list(ours.token_ids) == most_likely(theirs, ours.prompt_ids, ours.token_ids)
