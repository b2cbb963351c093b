"""The engine on real decoders in float64: any batch, draft or tree gives plain decoding's tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.contracts import CausalLM, Drafter
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.models import load_model
from forerun.params import SamplingParams
from forerun.testing import ToyModel, TreeDrafter
from tests.helpers.covering import covering
from tests.helpers.tiny_models import VOCAB, tiny_model, tokens

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "gpt_neo", "moshi"]
ROWS = 8
PROMPTS = [tokens(1, length, seed=length)[0].tolist() for length in (3, 1, 9, 5, 17, 2, 7, 12)]
SAMPLERS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=12),
    "seeded": SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=12),
}


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CausalLM]:
    made: dict[str, CausalLM] = {}

    def get(family: str) -> CausalLM:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            tiny_model(family).save_pretrained(folder)
            made[family] = load_model(folder, dtype="fp64", device="cpu")
        return made[family]

    return get


def drafters(target: CausalLM, draft: CausalLM) -> dict[str, Drafter]:
    """A good draft (the target's own weights), a bad one, a lookup and a tree."""
    return {
        "itself": DraftModelDrafter(target, ROWS, target.max_context),
        "another": DraftModelDrafter(draft, ROWS, draft.max_context),
        "ngram": NgramDrafter(1, 2),
        "tree": TreeDrafter(ToyModel(VOCAB), (3, 2, 1)),
    }


@pytest.mark.parametrize(("family", "sampler"), covering(FAMILIES, ["seeded", "greedy"]))
def test_a_ragged_batch_equals_single_plain_runs(
    family: str, sampler: str, load: Callable[[str], CausalLM]
) -> None:
    target, params = load(family), SAMPLERS[sampler]
    alone = Engine(target)
    expected = []
    for prompt in PROMPTS:
        stream = alone.stream_plain(prompt, params)
        expected.append(tuple(event.token_id for event in stream))
    for name, drafter in drafters(target, load("gpt2")).items():
        config = SpeculativeConfig(num_speculative_tokens=3, policy="fixed")
        engine = Engine(target, drafter, config, max_batch_size=ROWS)
        completions = engine.generate(PROMPTS, params)
        assert [one.token_ids for one in completions] == expected, name
        if name == "itself":
            assert engine.stats.acceptance_rate == 1.0
        else:
            assert engine.stats.num_draft_tokens > 0


def test_logprobs_come_from_the_target_under_speculation(load: Callable[[str], CausalLM]) -> None:
    target = load("qwen3")
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2)
    draft = DraftModelDrafter(load("llama"), 1, 64)
    ours = Engine(target, draft).generate([PROMPTS[0]], params)[0].logprobs
    theirs = Engine(target).stream_plain(PROMPTS[0], params)
    expected = [event.logprob for event in theirs]
    assert ours is not None
    for one, other in zip(ours, expected, strict=True):
        assert other is not None
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-10)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


@pytest.mark.parametrize("family", ["qwen3", "gpt_neo", "moshi"])
def test_greedy_text_equals_that_of_transformers(family: str, tmp_path: Path) -> None:
    """The whole way from a saved checkpoint, against an implementation that is not ours."""
    reference: Any = tiny_model(family).double()
    reference.save_pretrained(tmp_path)
    target = load_model(tmp_path, dtype="fp64", device="cpu")
    params = SamplingParams(temperature=0.0, max_tokens=12)
    # Below and beyond its windows.
    prompts, theirs = PROMPTS[1:5], []
    for prompt in prompts:
        # Its cache would drop what lies beyond Moshi's window, which its attention does not use.
        whole = reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=12, do_sample=False, eos_token_id=None, use_cache=False,
        )  # fmt: skip
        theirs.append(whole[0, len(prompt) :].tolist())
    for drafter in (NgramDrafter(1, 3), TreeDrafter(ToyModel(VOCAB), (3, 2, 1))):
        engine = Engine(target, drafter)
        ours = [engine.generate([prompt], params)[0].token_ids for prompt in prompts]
        assert list(map(list, ours)) == theirs
