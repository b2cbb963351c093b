"""The trained pair that comes with forerun: it loads anywhere, is exact, and worth drafting with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch

import forerun
from forerun.core import Batch, FinishReason
from forerun.measure.attribution import NUMERICS, first_difference
from forerun.models import Checkpoint
from forerun.models.config import as_transformers
from forerun.models.zoo import packaged_path
from forerun.proof.effort import PARTS, Effort
from forerun.proof.prompts import held_out_prompts
from forerun.proof.proof import prove
from tests.helpers.gguf_files import read_by_transformers

pytestmark = pytest.mark.zoo
# Bytes of the package, and of all files of a clone.
MOST_ZOO, MOST_TRACKED = 28e6, 42.5e6
GREEDY = forerun.SamplingParams(temperature=0, max_tokens=32)


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return held_out_prompts()


@pytest.fixture(scope="module")
def engine() -> forerun.Engine:
    config = forerun.SpeculativeConfig(method="draft_model", model="zoo-draft", policy="fixed")
    return forerun.load("zoo", config, dtype="fp32", device="cpu", max_batch_size=4)


def test_the_package_is_complete_and_small(prompts: list[str]) -> None:
    package = packaged_path("zoo").parent
    assert sum(path.stat().st_size for path in package.rglob("*") if path.is_file()) <= MOST_ZOO
    assert len(prompts) >= 150
    assert (package / "LICENSE.txt").exists()
    report = json.loads((package / "report.json").read_text())
    assert report["target"]["bits_per_byte"] < report["draft"]["bits_per_byte"]


def test_the_repository_travels() -> None:
    """All that a clone checks out."""
    root = Path(__file__).parents[1]
    listed = run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("this is no clone")
    paths = [root / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert sum(path.stat().st_size for path in paths if path.is_file()) <= MOST_TRACKED


def test_transformers_loads_both_and_agrees(engine: forerun.Engine, prompts: list[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target, draft = packaged_path("zoo"), packaged_path("zoo-draft")
    tokenizers = (
        AutoTokenizer.from_pretrained(target.parent, gguf_file=target.name),
        AutoTokenizer.from_pretrained(draft),
    )
    models: tuple[Any, ...] = (
        read_by_transformers(target, as_transformers(Checkpoint.open("zoo").config)),
        AutoModelForCausalLM.from_pretrained(draft, dtype=torch.float32),
    )
    for path, tokenizer, theirs in zip((target, draft), tokenizers, models, strict=True):
        ids = tokenizer.encode(prompts[0])
        assert ids == engine.tokenizer.encode(prompts[0])  # type: ignore[union-attr]
        ours = forerun.models.load_model(path, dtype="fp32", device="cpu")
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids])).logits
            cache = ours.new_cache(1, len(ids))
            logits = ours.forward(Batch.after(cache, [0], [ids]), cache).logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)


def test_greedy_output_is_that_of_plain_decoding(
    engine: forerun.Engine, prompts: list[str]
) -> None:
    """Token for token, but where float32 rounding explains how a near-tie fell."""
    identical = 0
    for prompt, ours in zip(prompts, engine.generate(prompts[:6], GREEDY), strict=False):
        stream = engine.stream_plain(prompt, GREEDY)
        plain = [event.token_id for event in stream]
        found = first_difference(
            engine.target, engine.tokenizer, ours.prompt_ids, ours.token_ids, plain, GREEDY
        )
        identical += found is None
        assert found is None or found.explanation == NUMERICS
    assert identical >= 5


def test_the_draft_is_worth_its_while(engine: forerun.Engine, prompts: list[str]) -> None:
    completions = engine.generate(prompts[:8], GREEDY)
    total = forerun.Stats.total(one.stats for one in completions)
    assert total.mean_acceptance_length is not None
    assert total.mean_acceptance_length > 2.0


def test_the_tokenizer_gives_every_text_back(tmp_path: Path) -> None:

    tokenizer = Checkpoint.open("zoo").tokenizer
    for text in ("def f(x):\n\treturn x\n\n\n", "naïve 日本 🙂  two  spaces \r\n", " leading"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_end_of_text_is_known(engine: forerun.Engine) -> None:
    assert engine.eos_token_ids == {0}
    params = forerun.SamplingParams(temperature=0, max_tokens=5, allowed_token_ids=(0,))
    completion = engine.generate(["x = 1\n"], params)[0]
    assert completion.finish_reason is FinishReason.STOP
    assert completion.token_ids == (0,)
    assert completion.text == ""


def test_the_pair_is_proven(engine: forerun.Engine, prompts: list[str]) -> None:
    """In small; docs/exactness.md has the command for a limit of one per cent."""
    assert engine.tokenizer is not None
    several = [engine.tokenizer.encode(text)[-32:] for text in prompts[:8]]
    params = forerun.SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1)
    effort = Effort(num_tokens=256, output_tokens=32, equality_prompts=2, part=PARTS[1:])
    proof = prove(engine, several, params, effort)
    assert proof.passed
    assert proof.statistics is not None
    assert proof.statistics.first.rules == ("block",)
