"""The test matrix: every drafter, rule and sampler, in one shared list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch

from forerun.compression import METHODS, Compression
from forerun.contracts import Drafter
from forerun.core import NO_HINTS, Hints, View
from forerun.drafters.automaton import SuffixAutomaton
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.eagle3 import Eagle3Drafter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.drafters.medusa import MedusaDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.prediction import PredictionDrafter
from forerun.drafters.self_sparse import SelfSparseDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.drafters.token_recycling import TokenRecyclingDrafter
from forerun.engine.config import DraftSampling
from forerun.engine.engine import Engine
from forerun.heads.eagle3 import Eagle3Config, Eagle3Head
from forerun.heads.medusa import MedusaConfig, MedusaHead
from forerun.params import SamplingParams
from forerun.testing import ToyModel, TreeDrafter
from tests.helpers.eagle_heads import Made, published
from tests.helpers.layered import LayeredToyModel
from tests.helpers.medusa_heads import random_tensors

VOCAB = 11
ROWS = 4
# In layers, so that its first ones can draft; its logits are those of a ToyModel.
TARGET = LayeredToyModel(VOCAB)
DRAFT = ToyModel(VOCAB, noise=1.0)


@dataclass(frozen=True)
class DrafterCase:
    """A drafter and the rules that may judge it; a new drafter adds one.

    Args:
        drafter_for: from a target and a draft model of the same vocabulary.
        config: further speculative options, a tree for instance.
        hints: what its requests come with.
    """

    name: str
    drafter_for: Callable[[LayeredToyModel, ToyModel], Drafter]
    rules: tuple[str, ...]
    draft_sample_method: DraftSampling = "auto"
    config: Mapping[str, Any] = field(default_factory=dict)
    hints: Hints = NO_HINTS

    def make(self) -> Drafter:
        """Over the matrix's own models."""
        return self.drafter_for(TARGET, DRAFT)


TREE = {"tree": "auto", "num_tree_nodes": 6}
SHAPE = {"tree": [-1, -1, -1, 0, 0, 1, 3]}
# The toy looks three tokens back; these leave one of them out.
VIEW = View(1, 2)
POINT_MASSES = ("auto", "token", "coupled")
# Some of it comes so, and all tokens occur.
PREDICTED = Hints(
    prediction=(*range(VOCAB), 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8)
)


def _eagle3(target: LayeredToyModel, least: float = 0.0) -> Eagle3Drafter:
    """With a random head over all but a few of the target's tokens."""
    size = target.vocab_size
    made = Made(
        size,
        size,
        size,
        draft_vocab=size * 3 // 4,
        heads=1,
        kv_heads=1,
        head_dim=6,
        inner=9,
        ids=(1, 2, 3),
    )
    config, tensors = published(made, "vllm")
    head = Eagle3Head(target, Eagle3Config.read(config, "head"), tensors, "head")
    drafter = Eagle3Drafter(head, size, ROWS, target.max_context)
    drafter.least = least
    return drafter


def _medusa(target: LayeredToyModel) -> MedusaDrafter:
    """With random heads over all but a few of the target's tokens."""
    size = target.vocab_size
    config = MedusaConfig(size, size, 3, 2, size * 3 // 4)
    ids = {"d2t": torch.arange(config.draft_vocab_size) // 3}
    head = MedusaHead(target, config, random_tensors(config, spread=2.0) | ids, "head")
    return MedusaDrafter(head, size, ROWS, target.max_context)


@cache
def quoted(target: LayeredToyModel) -> SuffixAutomaton:
    """What the target itself writes, so that a corpus is quoted; and other texts that begin like it."""
    params = SamplingParams(temperature=0.0, max_tokens=48)
    done = Engine(target).generate([[1, 2, 3], [4]], params)
    texts = [[*one.prompt_ids, *one.token_ids] for one in done]
    corpus = SuffixAutomaton()
    for text in (*texts, *(text[at : at + 9][::-1] for text in texts for at in range(30))):
        corpus.extend(text)
        corpus.end_text()
    return corpus


DRAFTERS = [
    DrafterCase(
        "draft_model",
        lambda _, draft: DraftModelDrafter(draft, ROWS, draft.max_context),
        ("auto", "token", "block", "traversal", "coupled"),
    ),
    DrafterCase(
        "draft_model-greedy",
        lambda _, draft: DraftModelDrafter(draft, ROWS, draft.max_context),
        ("auto", "token", "coupled"),
        draft_sample_method="greedy",
    ),
    DrafterCase(
        "draft_model-tree",
        lambda _, draft: DraftModelDrafter(draft, ROWS, draft.max_context),
        ("auto", "token", "traversal", "coupled"),
        config=TREE,
    ),
    DrafterCase(
        "draft_model-shape-greedy",
        lambda _, draft: DraftModelDrafter(draft, ROWS, draft.max_context),
        ("auto", "token", "coupled"),
        draft_sample_method="greedy",
        config=SHAPE,
    ),
    DrafterCase(
        "cascade",
        lambda _, draft: CascadeDrafter(
            [NgramDrafter(1, 3), DraftModelDrafter(draft, ROWS, draft.max_context)]
        ),
        ("auto", "token", "coupled"),
        config=TREE,
    ),
    DrafterCase(
        "eagle3",
        lambda target, _: _eagle3(target),
        ("auto", "token", "block", "traversal", "coupled"),
    ),
    DrafterCase(
        "eagle3-confident",
        lambda target, _: _eagle3(target, 0.1),
        ("auto", "token", "block", "coupled"),
    ),
    DrafterCase(
        "eagle3-tree",
        lambda target, _: _eagle3(target),
        ("auto", "token", "traversal", "coupled"),
        config=TREE,
    ),
    DrafterCase(
        "eagle3-shape-greedy",
        lambda target, _: _eagle3(target),
        ("auto", "token", "coupled"),
        draft_sample_method="greedy",
        config=SHAPE,
    ),
    DrafterCase(
        "layer_skip",
        lambda target, _: LayerSkipDrafter(target, 1),
        ("auto", "token", "block", "traversal", "coupled"),
    ),
    DrafterCase(
        "medusa",
        lambda target, _: _medusa(target),
        ("auto", "token", "block", "traversal", "coupled"),
    ),
    DrafterCase(
        "medusa-tree",
        lambda target, _: _medusa(target),
        ("auto", "token", "traversal", "coupled"),
        config=TREE,
    ),
    DrafterCase(
        "medusa-shape-greedy",
        lambda target, _: _medusa(target),
        ("auto", "token", "coupled"),
        draft_sample_method="greedy",
        config=SHAPE,
    ),
    DrafterCase("ngram", lambda *_: NgramDrafter(1, 3), POINT_MASSES),
    DrafterCase("ngram-tree", lambda *_: NgramDrafter(1, 3), POINT_MASSES, config=TREE),
    DrafterCase(
        "self_sparse-coarse",
        lambda target, _: SelfSparseDrafter(target, View(1, 2, coarse=True)),
        ("auto", "token", "block", "traversal", "coupled"),
    ),
    DrafterCase(
        "self_sparse",
        lambda target, _: SelfSparseDrafter(target, VIEW),
        ("auto", "token", "block", "traversal", "coupled"),
    ),
    DrafterCase(
        "self_sparse-tree",
        lambda target, _: SelfSparseDrafter(target, VIEW),
        ("auto", "token", "traversal", "coupled"),
        config=TREE,
    ),
    DrafterCase(
        "self_sparse-shape-greedy",
        lambda target, _: SelfSparseDrafter(target, VIEW),
        ("auto", "token", "coupled"),
        draft_sample_method="greedy",
        config=SHAPE,
    ),
    DrafterCase("suffix", lambda *_: SuffixDrafter(), POINT_MASSES),
    DrafterCase("suffix-tree", lambda *_: SuffixDrafter(), POINT_MASSES, config=TREE),
    DrafterCase(
        "suffix-corpus",
        lambda target, _: SuffixDrafter(100, quoted(target)),
        POINT_MASSES,
        config=SHAPE,
    ),
    DrafterCase(
        "token_recycling", lambda target, _: TokenRecyclingDrafter(target.vocab_size), POINT_MASSES
    ),
    DrafterCase(
        "token_recycling-tree",
        lambda target, _: TokenRecyclingDrafter(target.vocab_size),
        POINT_MASSES,
        config=TREE,
    ),
    DrafterCase(
        "token_recycling-shape",
        lambda target, _: TokenRecyclingDrafter(target.vocab_size),
        POINT_MASSES,
        config=SHAPE,
    ),
    DrafterCase("prediction", lambda *_: PredictionDrafter(), POINT_MASSES, hints=PREDICTED),
    DrafterCase(
        "prediction-tree",
        lambda *_: PredictionDrafter(),
        POINT_MASSES,
        config=TREE,
        hints=PREDICTED,
    ),
    DrafterCase(
        "tree", lambda _, draft: TreeDrafter(draft), ("auto", "token", "traversal", "coupled")
    ),
    DrafterCase(
        "tree-replacement",
        lambda _, draft: TreeDrafter(draft, (3, 2), replacement=True),
        ("auto", "token", "traversal", "coupled"),
    ),
    DrafterCase(
        "tree-top",
        lambda _, draft: TreeDrafter(draft, (3, 1, 1)),
        ("auto", "token", "coupled"),
        draft_sample_method="greedy",
    ),
]


# Every method of compression, small enough to evict while the matrix's texts are decoded.
_SMALL = {"kv_sinks": 1, "kv_recent": 2, "kv_interval": 5}
COMPRESSIONS = {
    **{name: Compression(kv_method=name, kv_budget=6, **_SMALL) for name in METHODS},
    "snapkv-ratio": Compression(kv_method="snapkv", kv_compression_ratio=0.6, **_SMALL),
}


# Quick, for what hardly depends on the drafter: each third of them.
SOME_DRAFTERS = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (at % 3 != 0))
    for at, case in enumerate(DRAFTERS)
]


def no_repeats(committed: object, drafted: object) -> list[bool]:
    """A grammar that depends on the drafted prefix: no token twice in a row."""
    latest = (*committed, *drafted)[-1]  # type: ignore[misc]
    return [token != latest for token in range(VOCAB)]


SAMPLERS = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy-penalties": SamplingParams(temperature=0.0, repetition_penalty=1.5),
    "temperature": SamplingParams(temperature=0.7),
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.8),
    "min_p": SamplingParams(min_p=0.2),
    "penalties": SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2
    ),
    "bias": SamplingParams(logit_bias={3: 2.0, 4: -2.0}, banned_token_ids=(5,)),
    "mask": SamplingParams(mask=no_repeats, allowed_token_ids=(0, 1, 2, 3, 4, 5, 6)),
}

PROMPTS = {"batch-1": [[1, 2, 3]], "ragged": [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1, 2, 3, 5]]}

# All pairs of drafter, rule, sampler and batch, and each drafter with each rule on both batches: two in
# five of all triples. One in five is quick: every drafter with each of its rules and batches.
CASES = [
    pytest.param(
        *(drafter, rule, sampler, batch := list(PROMPTS)[(at + rule_at + sampler_at) % 2]),
        id=f"{drafter.name}-{rule}-{sampler}-{batch}",
        marks=[pytest.mark.slow] * (place % 5 != 0),
    )
    for at, drafter in enumerate(DRAFTERS)
    for rule_at, rule in enumerate(drafter.rules)
    for sampler_at, sampler in enumerate(SAMPLERS)
    if (place := 2 * at + rule_at + sampler_at) % 5 in (0, 2) or len(drafter.rules) == 1
]
