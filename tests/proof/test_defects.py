"""Planted defects are caught by the statistics alone and by enumeration; correct methods pass both."""

from __future__ import annotations

import pytest

from forerun.contracts import Drafter, Verifier
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ExactnessError
from forerun.params import SamplingParams
from forerun.proof.effort import ProofOutputs
from forerun.proof.statistics import Statistics, by_statistics
from forerun.randomness import Randomness
from forerun.testing import ToyModel, TreeDrafter, check_drafter, check_verifier
from forerun.testing.verifier_check import default_cases
from forerun.verification.token import TokenRule
from tests.helpers import defects

VOCAB, ROWS = 8, 8
TARGET = ToyModel(VOCAB, sharpness=1.2, max_context=64)
DRAFT = ToyModel(VOCAB, sharpness=1.2, noise=0.8, max_context=64)
SMALL_TARGET = ToyModel(3, sharpness=1.0)
SMALL_DRAFT = ToyModel(3, sharpness=1.0, noise=0.8)
PROMPTS = [[1, 2, 3, 1, 2], [4, 5], [7, 0, 7, 0, 7]]
NUM_TOKENS = 900
# For what is rare.
MANY_TOKENS = 1500
# Enough to see that numbers are used twice, or that a row is not the one drawn from.
FEW_TOKENS = 400


def statistics(
    drafter: Drafter,
    rule: str,
    verifier: Verifier | None = None,
    num_tokens: int = NUM_TOKENS,
    randomness: Randomness | None = None,
) -> Statistics:
    config = SpeculativeConfig(
        num_speculative_tokens=3, rejection_sample_method=rule, policy="fixed"
    )
    engine = Engine(TARGET, drafter, config, max_batch_size=ROWS, randomness=randomness)
    if verifier is not None:
        engine.rules[rule] = verifier
    setting = ProofOutputs(SamplingParams(temperature=0.9, presence_penalty=0.2), num_tokens, 40)
    return by_statistics(engine, PROMPTS, setting)


OF_DRAFTERS = [defects.SoftmaxForArgmax, defects.DropsUnlikely, defects.OtherTemperature]
slow = pytest.mark.slow


@pytest.mark.parametrize(
    "kind", [OF_DRAFTERS[0], *(pytest.param(kind, marks=slow) for kind in OF_DRAFTERS[1:])]
)
def test_defects_of_drafters(kind: type[DraftModelDrafter]) -> None:
    needed = {defects.DropsUnlikely: MANY_TOKENS, defects.SoftmaxForArgmax: FEW_TOKENS}
    num_tokens = needed.get(kind, NUM_TOKENS)
    drafter = defects.chain_drafter(kind, DRAFT, ROWS)
    result = statistics(drafter, "token", num_tokens=num_tokens)
    assert not result.passed
    # The emitted tokens alone give it away, without those inside the round.
    alarms = result.first.alarms
    assert any(name.startswith(("emitted", "round start")) for name in alarms)


@pytest.mark.parametrize("kind", OF_DRAFTERS)
def test_defects_of_drafters_by_enumeration(kind: type[DraftModelDrafter]) -> None:
    with pytest.raises(ExactnessError, match="changes the distribution"):
        check_drafter(kind(SMALL_DRAFT, 2, 64), SMALL_TARGET)


def test_the_recovered_token_drawn_from_the_target() -> None:
    drafter = defects.chain_drafter(DraftModelDrafter, DRAFT, ROWS)
    assert not statistics(drafter, "token", defects.RecoversFromTarget()).passed
    with pytest.raises(ExactnessError, match="'token' changes the distribution"):
        check_verifier(defects.RecoversFromTarget(), default_cases((3,)))


@slow
def test_the_target_drawn_once_a_branch() -> None:
    drafter = defects.tree_drafter(DRAFT)
    assert not statistics(drafter, "token", defects.OnceABranch(), MANY_TOKENS).passed


def test_the_target_drawn_once_a_branch_by_enumeration() -> None:
    with pytest.raises(ExactnessError, match="over point masses"):
        check_verifier(defects.OnceABranch(), default_cases((3,)))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (defects.OneNumberADraft, "token"),
        pytest.param(defects.OneNumberADraft, "block", marks=slow),
        pytest.param(defects.OneNumberADraft, "auto", marks=slow),
        pytest.param(defects.TheSameEachRound, "token", marks=slow),
        (defects.TheSameEachRound, "block"),
        pytest.param(defects.TheSameEachRound, "auto", marks=slow),
    ],
)
def test_numbers_used_twice(kind: type[Randomness], rule: str) -> None:
    """Single tokens follow their rows; their joint distribution is not the target's."""
    drafter = defects.chain_drafter(DraftModelDrafter, DRAFT, ROWS)
    result = statistics(drafter, rule, num_tokens=FEW_TOKENS, randomness=kind())
    assert not result.passed
    words = "consecutive" if kind is defects.OneNumberADraft else "round by round"
    assert any(words in name for name in result.first.alarms)


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        pytest.param(DraftModelDrafter(DRAFT, ROWS, 64), "token", marks=slow),
        # `auto` below takes this rule too.
        pytest.param(DraftModelDrafter(DRAFT, ROWS, 64), "block", marks=slow),
        pytest.param(DraftModelDrafter(DRAFT, ROWS, 64), "coupled", marks=slow),
        (NgramDrafter(1, 3), "token"),
        (TreeDrafter(DRAFT, (3, 2)), "token"),
        pytest.param(TreeDrafter(DRAFT, (2, 2), replacement=True), "token", marks=slow),
        pytest.param(TreeDrafter(DRAFT, (3, 2)), "traversal", marks=slow),
        (TreeDrafter(DRAFT, (2, 2), replacement=True), "traversal"),
        (TreeDrafter(DRAFT, (1, 1, 1)), "auto"),
    ],
    ids=[
        "chain-token",
        "chain-block",
        "chain-coupled",
        "ngram",
        "tree",
        "tree-replacement",
        "tree-traversal",
        "tree-replacement-traversal",
        "auto",
    ],
)
def test_correct_methods_pass(drafter: Drafter, rule: str) -> None:
    result = statistics(drafter, rule, num_tokens=NUM_TOKENS)
    assert result.passed
    assert result.first.num_tokens >= NUM_TOKENS
    assert result.first.largest_row_difference < 1e-12
    # The rule that auto takes for chains of a tree drafter is recorded, not assumed.
    assert result.first.rules == (("block",) if rule == "auto" else (rule,))


class Strays(TokenRule):
    """`decide` is correct, `verify` is not: enumerating the decision alone would pass."""

    def verify(self, *args):  # type: ignore[no-untyped-def]
        return defects.RecoversFromTarget().verify(*args)


def test_a_walk_that_does_not_follow_its_decision() -> None:
    with pytest.raises(ExactnessError):
        check_verifier(Strays(), default_cases((3,)))


@slow
def test_a_walk_that_does_not_follow_its_decision_by_statistics() -> None:
    result = statistics(DraftModelDrafter(DRAFT, ROWS, 64), "token", Strays())
    assert any(name.startswith("recovered") for name in result.first.alarms)
