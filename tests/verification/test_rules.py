"""Which rule verifies which draft, what each refuses, and what typical acceptance takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun import verification
from forerun.core import NO_DRAFT, Draft, Drawing, Exactness, Request, Tree
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import ToyModel, TreeDrafter
from forerun.testing.enumeration import (
    RandomRows,
    by_decision,
    deviation,
    drawn_drafts,
    emitted_distribution,
    ends_of,
    target_distribution,
)
from forerun.verification import (
    make_rule,
    rule_for,
    rule_of,
    traversal,
    typical,
    verify_one,
)
from forerun.verification.traversal import BlockRule
from tests.helpers.verification import verify_logits

pytestmark = pytest.mark.usefixtures("form")

ROWS = torch.full((2, 3), 1 / 3)
CHAIN, TREE = (-1, 0), (-1, -1)
DRAFTS = {
    "nothing": NO_DRAFT,
    "fixed chain": Draft(Tree(CHAIN), (0, 1)),
    "fixed tree": Draft(Tree(TREE), (0, 1)),
    "drawn chain": Draft(Tree(CHAIN), (0, 1), ROWS),
    "drawn tree": Draft(Tree(TREE), (0, 1), ROWS),
}
TARGET, DRAFT = ToyModel(11), ToyModel(11, noise=1.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", ["block", "token", "token", "block", "traversal"]),
        ("token", ["token"] * 5),
        # A tree is refused by the rule itself.
        ("block", ["block", "token", "token", "block", "block"]),
        ("traversal", ["traversal", "token", "token", "traversal", "traversal"]),
        ("typical", ["typical"] * 5),
        ("coupled", ["coupled"] * 5),
    ],
)
def test_the_rule_that_a_name_means(name: str, expected: list[str]) -> None:
    request = Request(0, [1], 1, SamplingParams(), 0)
    assert [rule_of(rule_for(name, request), draft) for draft in DRAFTS.values()] == expected
    seeded = Request(0, [1], 1, SamplingParams(seed=1), 1)
    of_seeds = ["coupled"] * 5 if name == "auto" else expected
    assert [rule_of(rule_for(name, seeded), draft) for draft in DRAFTS.values()] == of_seeds


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("token", []),
        ("block", ["fixed chain", "fixed tree", "drawn tree"]),
        ("traversal", ["fixed chain", "fixed tree"]),
        ("typical", ["drawn tree"]),
        ("coupled", []),
    ],
)
def test_drafts_that_a_rule_does_not_take(name: str, refused: list[str]) -> None:
    request = Request(0, [1], 1, SamplingParams(), 0)
    rule = make_rule(name)
    for kind, draft in DRAFTS.items():
        target = torch.full((len(draft) + 1, 3), 1 / 3)
        if kind not in refused:
            verify_one(rule, draft, target, request, Randomness())
            continue
        with pytest.raises(ConfigError, match=r"takes .*use '"):
            verify_one(rule, draft, target, request, Randomness())
        with pytest.raises(ConfigError, match=r"takes .*use '"):
            verify_logits(rule, draft, target.log(), request)


@pytest.mark.parametrize("rule", ["block", "traversal"])
def test_rules_for_drawn_drafts_need_a_drafter_that_draws(rule: str) -> None:
    config = SpeculativeConfig(rejection_sample_method=rule)
    with pytest.raises(ConfigError, match=f"ngram proposes point masses, which {rule}"):
        Engine(TARGET, NgramDrafter(), config)
    Engine(TARGET, DraftModelDrafter(DRAFT, 1, 512), config)


def test_typical_acceptance_takes_no_drawn_trees() -> None:
    config = SpeculativeConfig(rejection_sample_method="typical")
    with pytest.raises(ConfigError, match="tree draws trees, typical acceptance takes"):
        Engine(TARGET, TreeDrafter(DRAFT), config)
    Engine(TARGET, NgramDrafter(), config)
    Engine(TARGET, DraftModelDrafter(DRAFT, 1, 512), config)
    greedy = SpeculativeConfig(rejection_sample_method="typical", draft_sample_method="greedy")
    Engine(TARGET, TreeDrafter(DRAFT), greedy)


def test_traversal_takes_what_a_drafter_draws_in_the_engine() -> None:
    taken: set[str] = set()
    for drafter in (TreeDrafter(DRAFT), DraftModelDrafter(DRAFT, 1, 512)):
        config = SpeculativeConfig(rejection_sample_method="traversal", policy="fixed")
        engine = Engine(TARGET, drafter, config)
        engine.generate([[1, 2, 3]], SamplingParams(max_tokens=20))
        taken |= engine.rules.keys()
        assert engine.stats.num_accepted_tokens > 0
    assert taken <= {"traversal", "token"}
    assert "traversal" in taken


@pytest.mark.parametrize("drafter", [NgramDrafter(1, 3), TreeDrafter(DRAFT, (3, 2))])
@pytest.mark.parametrize("rule", ["typical", "token"])
def test_greedy_requests_are_plain_decoding_under_typical_too(drafter: object, rule: str) -> None:
    config = SpeculativeConfig(
        rejection_sample_method=rule, draft_sample_method="greedy", policy="fixed"
    )
    engine = Engine(TARGET, drafter, config)  # type: ignore[arg-type]
    params = SamplingParams(temperature=0.0, max_tokens=30)
    ours = engine.generate([[1, 2, 3]], params)[0].token_ids
    assert ours == tuple(event.token_id for event in engine.stream_plain([1, 2, 3], params))
    assert engine.stats.num_accepted_tokens > 0


def best_end(draft: Draft, target: Tensor, epsilon: float, delta: float) -> int:
    """The deepest node whose whole path is typical, the first of them; written down plainly."""
    best, deepest = -1, 0
    for node in range(len(draft)):
        path = draft.tree.path_to(node)
        typical_path = True
        for one in path:
            row = target[draft.tree.parents[one] + 1].tolist()
            entropy = -math.fsum(p * math.log(p) for p in row if p > 0)
            enough = min(epsilon, delta * math.exp(-entropy))
            typical_path = typical_path and row[draft.token_ids[one]] > enough
        if typical_path and len(path) > deepest:
            best, deepest = node, len(path)
    return best


def test_typical_acceptance_takes_the_longest_path_of_typical_tokens() -> None:
    ends = set()
    for seed in range(300):
        source = np.random.default_rng(seed)
        size = int(source.integers(0, 9))
        parents = tuple(int(source.integers(-1, node)) for node in range(size))
        tokens = tuple(source.integers(0, 6, size).tolist())
        target = torch.tensor(source.dirichlet(np.full(6, 0.5), size + 1)).float()
        draft = Draft(Tree(parents), tokens)
        epsilon, delta = source.uniform(0.05, 0.5, 2)
        decision = typical.decide(draft, target, epsilon, delta)
        end = best_end(draft, target, epsilon, delta)
        assert set(decision.accept.tolist()) <= {0.0, 1.0}
        assert ends_of(decision, size).tolist() == np.eye(size + 1)[end + 1].tolist()
        assert torch.equal(decision.emit, target)
        ends.add(end)
    assert len(ends) > 5


def test_typical_acceptance_changes_the_distribution() -> None:
    """On deterministic trees and on drawn chains; the certain and the greedy apart."""
    assert make_rule("typical").exactness is Exactness.APPROXIMATE
    target, drafter = RandomRows(4, 3, zeros=0.0), RandomRows(4, 103, zeros=0.0)
    emit = by_decision(typical.decide)
    for drafts in ([(1.0, Draft(Tree((-1, -1, 0)), (2, 1, 0)))], drawn_drafts(drafter, (-1, 0))):
        emitted = emitted_distribution(emit, target, drafts, 3)
        assert deviation(emitted, target_distribution(target, 3)) > 1e-2
        assert sum(emitted.values()) == pytest.approx(1.0)


def test_drafts_are_drawn_for_rules_that_take_them() -> None:
    sampled = Request(0, [1], 1, SamplingParams(), 0)
    greedy = Request(0, [1], 1, SamplingParams(temperature=0.0), 0)
    for name in ("auto", "token", "block", "traversal", "typical"):
        assert verification.drawing_for(name, sampled) is Drawing.SAMPLED
        assert verification.drawing_for(name, greedy) is Drawing.GREEDY


def test_rules_that_refuse_say_what_to_use() -> None:
    for rule in (BlockRule(), traversal):
        with pytest.raises(ConfigError, match="use 'token'"):
            rule.decide(DRAFTS["fixed tree"], torch.full((3, 3), 1 / 3))
