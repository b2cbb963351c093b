"""The test matrix: every drafter, rule and sampler, in one shared list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun.contracts import Drafter
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.params import SamplingParams
from forerun.testing import ToyModel, TreeDrafter

VOCAB = 11
ROWS = 4
TARGET = ToyModel(VOCAB)
DRAFT = ToyModel(VOCAB, noise=1.0)


@dataclass(frozen=True)
class DrafterCase:
    """A drafter and the rules that may judge it; a new drafter adds one."""

    name: str
    make: Callable[[], Drafter]
    rules: tuple[str, ...]
    draft_sample_method: str = "auto"


DRAFTERS = [
    DrafterCase(
        "draft_model",
        lambda: DraftModelDrafter(DRAFT, ROWS, DRAFT.max_context),
        ("auto", "token", "block", "coupled"),
    ),
    DrafterCase(
        "draft_model-greedy",
        lambda: DraftModelDrafter(DRAFT, ROWS, DRAFT.max_context),
        ("auto", "token", "coupled"),
        draft_sample_method="greedy",
    ),
    DrafterCase("ngram", lambda: NgramDrafter(1, 3), ("auto", "token", "coupled")),
    DrafterCase("tree", lambda: TreeDrafter(DRAFT), ("auto", "token", "coupled")),
    DrafterCase(
        "tree-replacement",
        lambda: TreeDrafter(DRAFT, (3, 2), replacement=True),
        ("auto", "token", "coupled"),
    ),
    DrafterCase(
        "tree-top",
        lambda: TreeDrafter(DRAFT, (3, 1, 1)),
        ("auto", "token", "coupled"),
        draft_sample_method="greedy",
    ),
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

CASES = [
    (drafter, rule, sampler, batch)
    for drafter in DRAFTERS
    for rule in drafter.rules
    for sampler in SAMPLERS
    for batch in PROMPTS
]
