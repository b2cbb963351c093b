"""On the CPU kernels speculation gives the tokens of plain decoding, in every precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import forerun
from forerun.contracts import Drafter
from forerun.core import Draft, Exactness, View
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.self_sparse import SelfSparseDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.drafters.token_recycling import TokenRecyclingDrafter
from forerun.models.cpu import CpuModel
from tests.helpers.covering import covering
from tests.helpers.kernel_models import model, needs_kernels

pytestmark = needs_kernels
PRECISIONS = ("fp32", "bf16", "int8", "int4")
EXPERTS = ("mixtral", "gpt_oss")
PROMPTS = [[5, 6, 7, 5, 6], [9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]
SAMPLERS = {
    "greedy": forerun.SamplingParams(temperature=0, max_tokens=40),
    "seeded": forerun.SamplingParams(temperature=0.7, seed=11, max_tokens=40),
    "nucleus": forerun.SamplingParams(top_p=0.9, top_k=9, seed=3, max_tokens=40),
}


def make(
    name: str, precision: str, drafter: str, rows: int, tree: str | None = None
) -> forerun.Engine:
    """An engine whose draft is the target itself in another precision."""
    target, draft = model(name, precision), model(name, "int8" if precision == "int4" else "int4")
    drafters: dict[str, Callable[[], Drafter]] = {
        "draft_model": lambda: DraftModelDrafter(draft, rows, 128),
        "ngram": lambda: NgramDrafter(1, 3),
        "suffix": SuffixDrafter,
        "token_recycling": lambda: TokenRecyclingDrafter(target.vocab_size),
        "layer_skip": lambda: LayerSkipDrafter(target, 1),
        "self_sparse": lambda: SelfSparseDrafter(target, View(2, 4)),
    }
    config = forerun.SpeculativeConfig(num_speculative_tokens=4, tree=tree, policy="fixed")
    return forerun.Engine(target, drafters[drafter](), config, max_batch_size=rows)


def plain(engine: forerun.Engine, prompt: object, params: forerun.SamplingParams) -> list[int]:
    return [event.token_id for event in engine.stream_plain(prompt, params)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "precision", "drafter", "rows"),
    [
        *covering(["mistral", "qwen3", "gpt2"], PRECISIONS, ["draft_model", "ngram"], [1, 3]),
        *(
            (name, precision, "draft_model", 3)
            for name in EXPERTS
            for precision in ("int8", "int4")
        ),
    ],
)
def test_speculation_changes_nothing(name: str, precision: str, drafter: str, rows: int) -> None:
    engine = make(name, precision, drafter, rows)
    assert engine.target.exactness is Exactness.BITWISE
    accepted = drafted = 0
    for params in SAMPLERS.values():
        completions = engine.generate(PROMPTS, params)
        for prompt, completion in zip(PROMPTS, completions, strict=True):
            assert list(completion.token_ids) == plain(engine, prompt, params)
        total = forerun.Stats.total(one.stats for one in completions)
        accepted += total.num_accepted_tokens
        drafted += total.num_draft_tokens
    # Some drafts were followed and some were not, so rows were rolled back.
    assert 0 < accepted < drafted


@pytest.mark.parametrize(
    ("name", "precision", "drafter", "rows"),
    covering(
        ["mistral", "qwen3"],
        ["bf16", "int8"],
        ["draft_model", "ngram", "self_sparse", "suffix", "token_recycling"],
        [1, 3],
    ),
)
def test_trees_change_nothing(name: str, precision: str, drafter: str, rows: int) -> None:
    engine = make(name, precision, drafter, rows, tree="auto")
    drafts: list[Draft] = []
    engine.watch_rounds(lambda done: drafts.extend(done.drafts))
    for params in SAMPLERS.values():
        for prompt, completion in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
            assert list(completion.token_ids) == plain(engine, prompt, params)
    assert not all(draft.tree.is_chain for draft in drafts)


@pytest.mark.parametrize(
    ("name", "precision", "drafter", "rows"),
    covering(["mistral", "qwen3"], ["bf16", "int8"], ["layer_skip", "self_sparse"], [1, 3]),
)
def test_the_targets_own_layers_change_nothing(
    name: str, precision: str, drafter: str, rows: int
) -> None:
    engine = make(name, precision, drafter, rows)
    for params in SAMPLERS.values():
        for prompt, completion in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
            assert list(completion.token_ids) == plain(engine, prompt, params)


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("precision", "method", "rows"),
    covering(["bf16", "int8", "int4"], ["draft_model", "ngram"], [3, 1]),
)
def test_the_zoo_too(precision: str, method: str, rows: int) -> None:
    draft = "zoo-draft" if method == "draft_model" else None
    config = forerun.SpeculativeConfig(method=method, model=draft, policy="fixed")
    engine = forerun.load("zoo", config, dtype=precision, device="cpu", max_batch_size=rows)
    assert isinstance(engine.target, CpuModel)
    prompts = [
        "def add(a, b):\n    return a",
        "import os\nimport sys\n\n\nclass",
        "for i in range(10):\n    print(i)\nfor i in range(10):\n",
    ]
    for temperature in (0.0, 0.8):
        params = forerun.SamplingParams(temperature=temperature, seed=5, max_tokens=20)
        completions = engine.generate(prompts, params)
        for prompt, completion in zip(prompts, completions, strict=True):
            assert list(completion.token_ids) == plain(engine, prompt, params)
