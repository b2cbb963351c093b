"""Tables by method and by tree follow from the comparisons."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import intervals
from benchmarks.methods import Setting, settings, summarize, summary, table
from benchmarks.questions import CATEGORIES, load_questions, read_questions
from benchmarks.rule_pairs import RulePairs, accepted
from forerun.compare.paired import comparison_of, run_pair
from forerun.core import Draft, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.token_recycling import TokenRecyclingDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.verification import verify_one
from forerun.verification.token import TokenRule
from forerun.verification.traversal import TraversalRule
from tests.matrix import DRAFT, TARGET

SETTING = Setting("draft_model", "auto", 3, 6)


def test_rows_add_up() -> None:
    drafter = DraftModelDrafter(DRAFT, 1, DRAFT.max_context)
    config = SpeculativeConfig(
        num_speculative_tokens=3, tree="auto", num_tree_nodes=6, monitor=False
    )
    engine = Engine(TARGET, drafter, config)
    params = SamplingParams(temperature=0.0, max_tokens=30)
    comparisons = []
    for token in range(6):
        pair = run_pair(engine, [1, token], params)
        comparisons.append(comparison_of(engine, [1, token], params, [pair]))
    row = summarize(SETTING, "made up", 0.0, comparisons)
    stats = [entry.shown.speculative.completion.stats for entry in comparisons]
    drafts = sum(own.num_drafts for own in stats)
    assert row.identical == row.prompts == 6
    assert row.mean_acceptance_length is not None
    emitted = sum(own.num_emitted_in_drafts for own in stats)
    assert row.mean_acceptance_length.value == pytest.approx(emitted / drafts)
    assert row.mean_acceptance_length.low <= emitted / drafts <= row.mean_acceptance_length.high
    assert 3 < row.drafted_per_round <= 6
    shares = row.acceptance_by_position
    assert list(shares) == sorted(shares, reverse=True)
    assert row.speedup.low <= row.speedup.value <= row.speedup.high
    assert "tree 6" in table([row])
    assert "6 of 6" in table([row])
    forwards = sum(own.num_target_forwards for own in stats)
    assert row.tokens_per_target_forward.value == pytest.approx(180 / forwards)
    cell = f"{row.tokens_per_target_forward.value:.2f}, {row.speedup.value:.2f} x"
    assert cell in summary([row])


def test_runs_are_measured_cold() -> None:
    """What a drafter remembers of a prompt does not help later runs of it."""
    config = SpeculativeConfig(num_speculative_tokens=4, monitor=False)
    engine = Engine(TARGET, TokenRecyclingDrafter(TARGET.vocab_size), config)
    params = SamplingParams(temperature=0.0, max_tokens=30)
    runs = [run_pair(engine, [1, 2], params).speculative.completion.stats for _ in range(3)]
    assert len({(run.num_drafts, run.num_accepted_tokens) for run in runs}) == 1
    warm = [engine.generate([[1, 2]], params)[0].stats for _ in range(2)]
    assert warm[1].num_drafts > warm[0].num_drafts, "or else this test could not fail"


def test_methods_without_trees_have_chains_only() -> None:
    valid = list(settings(["layer_skip", "suffix"], ["chain", "auto"], 8))
    assert [(setting.method, setting.shape) for setting in valid] == [
        ("layer_skip", "chain"),
        ("suffix", "chain"),
        ("suffix", "auto"),
    ]
    of_five = settings(["suffix", "ngram"], ["chain"], 8, 5)
    assert all(setting.length == 5 for setting in of_five)


def test_intervals_cover_the_true_value() -> None:
    random = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        values = random.normal(2.0, 1.0, 40)
        interval = intervals.mean(values.tolist())
        inside += interval.low <= 2.0 <= interval.high
    assert 175 <= inside <= 200
    assert intervals.median([5.0] * 4) == intervals.Interval(5.0, 5.0, 5.0)
    ratio = intervals.ratio([1, 2, 3], [2, 4, 6])
    assert ratio is not None
    assert ratio.value == pytest.approx(0.5)
    assert intervals.ratio([1.0], [0.0]) is None


@pytest.mark.zoo
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_has_prompts(category: str) -> None:
    prompts = [question.prompt for question in load_questions(category, 10)]
    assert all(prompts)
    assert len(set(prompts)) == len(prompts) == 10


def test_questions_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    lines = [{"prompt": "a", "prediction": "b"}, {"question_id": 7, "turns": ["first", "second"]}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    first, second = read_questions(path)
    assert (first.prompt, first.prediction, first.category) == ("a", "b", "mine")
    assert (second.prompt, second.question_id) == ("first", "7")
    for bad in ("", "nonsense", "[]", "{}", '{"turns": []}', '{"prompt": ""}', '{"prompt": 7}'):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="mine"):
            read_questions(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_questions(tmp_path)


def test_both_rules_are_asked_about_the_same_draft() -> None:
    """The computed acceptance is the mean over walks."""
    draft_engine = Engine(
        TARGET,
        DraftModelDrafter(DRAFT, 1, DRAFT.max_context),
        SpeculativeConfig(tree="auto", num_tree_nodes=7, monitor=False),
    )
    seen: list[Draft] = []
    pairs = RulePairs()
    draft_engine.rules["traversal"] = pairs
    draft_engine.watch_rounds(lambda _, draft, __: seen.append(draft))
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
