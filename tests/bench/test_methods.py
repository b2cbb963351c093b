"""Tables by method and by tree say what was compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forerun.bench import intervals
from forerun.bench.methods import Setting, settings, summarize, summary, table
from forerun.bench.paired import judged, run_pair
from forerun.bench.questions import CATEGORIES, load_questions, read_questions
from forerun.bench.rule_pairs import RulePairs, accepted
from forerun.core import Draft, Sequence
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.token_recycling import TokenRecyclingDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.verification.token import TokenRule
from forerun.verification.traversal import TraversalRule
from matrix import DRAFT, TARGET

SETTING = Setting("draft_model", "auto", 3, 6)


def test_rows_add_up() -> None:
    drafter = DraftModelDrafter(DRAFT, 1, DRAFT.max_context)
    config = SpeculativeConfig(
        num_speculative_tokens=3, tree="auto", num_tree_nodes=6, monitor=False
    )
    engine = Engine(TARGET, drafter, config)
    params = SamplingParams(temperature=0.0, max_tokens=30)
    found = []
    for token in range(6):
        pair = run_pair(engine, [1, token], params)
        found.append(judged(engine, [1, token], params, [pair]))
    row = summarize(SETTING, "made up", 0.0, found)
    stats = [one.shown.speculative.completion.stats for one in found]
    drafts = sum(one.num_drafts for one in stats)
    assert row.identical == row.prompts == 6
    assert row.mean_acceptance_length is not None
    emitted = sum(one.num_emitted_in_drafts for one in stats)
    assert row.mean_acceptance_length.value == pytest.approx(emitted / drafts)
    assert row.mean_acceptance_length.low <= emitted / drafts <= row.mean_acceptance_length.high
    assert 3 < row.drafted_per_round <= 6
    shares = row.acceptance_by_position
    assert list(shares) == sorted(shares, reverse=True)
    assert row.speedup.low <= row.speedup.value <= row.speedup.high
    assert "tree 6" in table([row])
    assert "6 of 6" in table([row])
    forwards = sum(one.num_target_forwards for one in stats)
    assert row.tokens_per_target_forward.value == pytest.approx(180 / forwards)
    cell = f"{row.tokens_per_target_forward.value:.2f}, {row.speedup.value:.2f} x"
    assert cell in summary([row])


def test_runs_are_measured_cold() -> None:
    """What a drafter keeps of one run of a prompt helps no later one of it."""
    config = SpeculativeConfig(num_speculative_tokens=4, monitor=False)
    engine = Engine(TARGET, TokenRecyclingDrafter(TARGET.vocab_size), config)
    params = SamplingParams(temperature=0.0, max_tokens=30)
    runs = [run_pair(engine, [1, 2], params).speculative.completion.stats for _ in range(3)]
    assert len({(one.num_drafts, one.num_accepted_tokens) for one in runs}) == 1
    kept = [engine.generate([[1, 2]], params)[0].stats for _ in range(2)]
    assert kept[1].num_drafts > kept[0].num_drafts, "or else this test could not fail"


def test_settings_leave_out_what_there_is_not() -> None:
    found = list(settings(["layer_skip", "suffix"], ["chain", "auto"], 8))
    assert [(one.method, one.shape) for one in found] == [
        ("layer_skip", "chain"),
        ("suffix", "chain"),
        ("suffix", "auto"),
    ]
    assert all(one.length == 5 for one in settings(["suffix", "ngram"], ["chain"], 8, 5))


def test_intervals_hold_what_they_are_of() -> None:
    random = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        values = random.normal(2.0, 1.0, 40)
        found = intervals.mean(values.tolist())
        inside += found.low <= 2.0 <= found.high
    assert 175 <= inside <= 200
    assert intervals.median([5.0] * 4) == intervals.Interval(5.0, 5.0, 5.0)
    ratio = intervals.ratio([1, 2, 3], [2, 4, 6])
    assert ratio is not None
    assert ratio.value == pytest.approx(0.5)
    assert intervals.ratio([1.0], [0.0]) is None


@pytest.mark.zoo
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_has_prompts(category: str) -> None:
    found = load_questions(category, 10)
    assert len(found) == 10
    assert all(one.prompt for one in found)
    assert len({one.prompt for one in found}) == 10


def test_questions_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    lines = [{"prompt": "a", "prediction": "b"}, {"question_id": 7, "turns": ["first", "second"]}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    one, two = read_questions(path)
    assert (one.prompt, one.prediction, one.category) == ("a", "b", "mine")
    assert (two.prompt, two.question_id) == ("first", "7")
    for bad in ("", "nonsense", "[]", "{}", '{"turns": []}', '{"prompt": ""}', '{"prompt": 7}'):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="mine"):
            read_questions(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_questions(tmp_path)


def test_both_rules_are_asked_about_the_same_draft() -> None:
    """What is computed is what the walk does, on average."""
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
            rule.verify(
                draft, probs, Sequence(0, [1] * (n + 1), 1, SamplingParams(), seed=n), Randomness()
            ).num_accepted
            for n in range(4000)
        ]
        assert np.mean(lengths) == pytest.approx(accepted(rule, draft, probs), abs=0.06)
