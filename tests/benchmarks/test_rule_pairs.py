"""Both rules on the same drafts, and the prompts that studies run on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.questions import CATEGORIES, load_questions, write_questions
from benchmarks.rule_pairs import RulePairs, accepted
from forerun.core import Draft, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.measure.questions import read_questions
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.verification import verify_one
from forerun.verification.token import TokenRule
from forerun.verification.traversal import TraversalRule
from tests.matrix import DRAFT, TARGET


@pytest.mark.zoo
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_has_prompts(category: str) -> None:
    prompts = [question.turns[0] for question in load_questions(category, 10)]
    assert all(prompts)
    assert len(set(prompts)) == len(prompts) == 10


@pytest.mark.zoo
def test_prompts_are_written_for_the_command(tmp_path: Path) -> None:
    write_questions(tmp_path)
    read = read_questions([tmp_path])
    assert {question.category for question in read} == set(CATEGORIES)
    of_edits = [question for question in read if question.category == "edits"]
    assert [q.prediction for q in of_edits] == [
        q.prediction for q in load_questions("edits", 10_000)
    ]


def test_both_rules_are_asked_about_the_same_draft() -> None:
    """The computed acceptance is the mean over walks."""
    draft_engine = Engine(
        TARGET,
        DraftModelDrafter(DRAFT, 1, DRAFT.max_context),
        SpeculativeConfig(tree="auto", num_tree_nodes=7, policy="fixed"),
    )
    seen: list[Draft] = []
    pairs = RulePairs()
    draft_engine.rules["traversal"] = pairs
    draft_engine.watch_rounds(lambda done: seen.extend(done.drafts))
    draft_engine.generate([[1, 2, 3]], SamplingParams(max_tokens=40))
    assert len(pairs._differences) == sum(len(draft) > 0 for draft in seen)
    draft = next(draft for draft in seen if len(draft) == 7)
    probs = TARGET.tables.new_ones(8, TARGET.vocab_size).softmax(-1)
    for rule in (TraversalRule(), TokenRule()):
        lengths = [
            verify_one(
                rule,
                draft,
                probs,
                Request(0, [1] * (n + 1), 1, SamplingParams(), seed=n),
                Randomness(),
            ).num_accepted
            for n in range(4000)
        ]
        assert np.mean(lengths) == pytest.approx(accepted(rule, draft, probs), abs=0.06)
